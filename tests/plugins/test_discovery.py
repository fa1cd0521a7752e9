from mstar_core.plugins.discovery import discover
from mstar_core.plugins.report import Status
from mstar_core.testing.distributions import install, leave_empty

HEALTHY = "from mstar_core import hookimpl\n"
EXPLODES = "raise AssertionError('imported')\n"


def found(discovery):
    return {plugin.name: plugin.path for plugin in discovery.plugins}


def reports(discovery):
    return {report.path: report for report in discovery.reports}


def test_discovery_of_a_plugin_reads_its_metadata_and_imports_nothing(site):
    path = install(site, "Mstar_Toy", EXPLODES, version="2.1")
    (plugin,) = discover([str(site)]).plugins
    assert (plugin.name, plugin.version, plugin.path) == ("mstar-toy", "2.1", str(path))
    assert [target for _, target in plugin.entries] == ["mstar_toy"]


def test_discovery_when_an_empty_copy_comes_first_uses_the_real_one_and_reports_both_paths(site, tmp_path):
    empty = leave_empty(tmp_path / "early", "mstar-toy")
    real = install(site, "mstar-toy", HEALTHY)
    discovery = discover([str(tmp_path / "early"), str(site)])
    assert found(discovery) == {"mstar-toy": str(real)}
    report = reports(discovery)[str(empty)]
    assert report.status is Status.SHADOWED
    assert str(empty) in report.reason
    assert str(real) in report.reason
    assert report.remedy == f"rm -r {empty}"


def test_discovery_when_a_copy_lost_its_code_uses_the_one_that_has_it(site, tmp_path):
    stale = install(tmp_path / "early", "mstar-toy", None, version="0.9")
    real = install(site, "mstar-toy", HEALTHY)
    discovery = discover([str(tmp_path / "early"), str(site)])
    assert found(discovery) == {"mstar-toy": str(real)}
    assert "mstar_toy/__init__.py, which it installed, is gone" in reports(discovery)[str(stale)].reason


def test_discovery_of_two_whole_copies_uses_the_first_on_the_path(site, tmp_path):
    first = install(site, "mstar-toy", HEALTHY, version="1.0")
    second = install(tmp_path / "late", "mstar-toy", HEALTHY, version="2.0")
    discovery = discover([str(site), str(tmp_path / "late")])
    assert found(discovery) == {"mstar-toy": str(first)}
    assert reports(discovery)[str(second)].remedy == "pip uninstall -y mstar-toy && pip install mstar-toy"


def test_discovery_when_a_directory_is_on_the_path_twice_sees_one_copy(site, tmp_path):
    install(site, "mstar-toy", HEALTHY)
    (tmp_path / "link").symlink_to(site)
    discovery = discover([str(site), str(tmp_path / "link")])
    assert (len(discovery.plugins), discovery.reports) == (1, ())


def test_discovery_of_the_only_copy_without_its_code_is_broken(site):
    install(site, "mstar-toy", None)
    (report,) = discover([str(site)]).reports
    assert (report.status, report.remedy) == (Status.BROKEN, "pip install --force-reinstall mstar-toy")


def test_discovery_when_metadata_is_garbled_costs_that_plugin_only(site):
    install(site, "mstar-toy", HEALTHY)
    garbled = install(site, "mstar-garbled", HEALTHY)
    (garbled / "METADATA").write_bytes(b"Name: \xff\xfe\n")
    discovery = discover([str(site)])
    assert list(found(discovery)) == ["mstar-toy"]
    report = reports(discovery)[str(garbled)]
    assert report.status is Status.BROKEN
    assert "metadata cannot be read" in report.reason


def test_discovery_when_the_requirement_on_core_excludes_this_one_says_wanted_found_and_the_command(site):
    install(site, "mstar-old", EXPLODES, requires=["numpy", "mstar-core<0.1"])
    (report,) = discover([str(site)]).reports
    assert report.status is Status.INCOMPATIBLE
    assert report.reason == "wanted mstar-core<0.1, found mstar-core 0.1.0"
    assert report.remedy == "pip install --upgrade mstar-core mstar-old"


def test_discovery_when_only_an_extra_excludes_this_core_accepts_the_plugin(site):
    install(site, "mstar-toy", HEALTHY, requires=["mstar-core>=0.0.1", "mstar-core>=9; extra == 'new'"])
    assert list(found(discover([str(site)]))) == ["mstar-toy"]


def test_discovery_with_an_allow_list_blocks_the_others_and_says_how_to_admit_them(site, monkeypatch):
    install(site, "mstar-a", EXPLODES)
    install(site, "mstar-b", EXPLODES)
    monkeypatch.setenv("MSTAR_PLUGINS", "MSTAR_A")
    discovery = discover([str(site)])
    assert list(found(discovery)) == ["mstar-a"]
    (report,) = discovery.reports
    assert (report.name, report.status) == ("mstar-b", Status.BLOCKED)
    assert report.remedy == "export MSTAR_PLUGINS=mstar-a,mstar-b"


def test_discovery_with_a_deny_list_overrules_the_allow_list(site, monkeypatch):
    install(site, "mstar-a", EXPLODES)
    monkeypatch.setenv("MSTAR_PLUGINS", "mstar-a")
    monkeypatch.setenv("MSTAR_BLOCK_PLUGINS", "mstar-a")
    (report,) = discover([str(site)]).reports
    assert (report.status, report.remedy) == (Status.BLOCKED, "unset MSTAR_BLOCK_PLUGINS")


def test_discovery_when_a_listed_plugin_is_not_installed_warns_with_the_nearest(site, monkeypatch):
    install(site, "mstar-toy", EXPLODES)
    monkeypatch.setenv("MSTAR_BLOCK_PLUGINS", "mstar-tou")
    (warning,) = discover([str(site)]).warnings
    assert warning == ("MSTAR_BLOCK_PLUGINS names 'mstar-tou', which is not installed (did you mean 'mstar-toy'?)")
