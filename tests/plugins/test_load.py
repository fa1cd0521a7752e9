import pytest

from mstar_core import hookimpl
from mstar_core.errors import PluginError
from mstar_core.plugins.discovery import discover
from mstar_core.plugins.loaded import LoadedPlugin
from mstar_core.plugins.manager import load
from mstar_core.plugins.report import Status
from mstar_core.testing.distributions import install, toy_source
from mstar_core.testing.plugins import registry_with

IMPL = "from mstar_core import hookimpl\n@hookimpl\n"


def outcome(site, name, source):
    install(site, name, source)
    (found,) = discover([str(site)]).plugins
    return load(found)


def test_load_of_a_healthy_plugin_gives_its_cards(site):
    plugin = outcome(site, "mstar-whole", toy_source("whole", "mstar_whole"))
    assert isinstance(plugin, LoadedPlugin)
    assert [card.name for card in plugin.models] == ["whole"]


@pytest.mark.parametrize(
    ("name", "source", "reason"),
    [
        ("mstar-needy", "import nowhere.at_all", "ModuleNotFoundError: No module named 'nowhere'"),
        ("mstar-quits", "raise SystemExit(3)", "import of mstar_quits raised SystemExit: 3"),
        ("mstar-garbage", "def :", "SyntaxError"),
        (
            "mstar-raises",
            IMPL + "def mstar_models(): return 1 / 0",
            "of plugin mstar-raises 1.0 raised ZeroDiv",
        ),
        ("mstar-typo", IMPL + "def mstar_model(): return []", "'mstar_model', which is no hook (did you mean 'mstar_m"),
        ("mstar-argument", IMPL + "def mstar_config(cart, checkpoint): ...", "cart"),
        ("mstar-unmarked", "def mstar_models(): return []", "mstar_models is not marked; write @mstar_core.hookimpl"),
        (
            "mstar-shape",
            IMPL + "def mstar_models(): return 'abc'",
            "tuple of ModelCard, not a value of type str",
        ),
        ("mstar-none", IMPL + "def mstar_models(): return [None]", "among them is None"),
        ("mstar-pairs", IMPL + "def mstar_engines(): return [('name',)]", "pairs, not ('name',)"),
    ],
)
def test_load_of_a_plugin_at_fault_reports_the_reason(site, name, source, reason):
    report = outcome(site, name, source)
    assert report.status is Status.BROKEN
    assert reason in report.reason
    assert report.remedy.endswith(name)


def test_load_when_an_import_raises_names_the_line_and_keeps_the_traceback(site):
    report = outcome(site, "mstar-deep", "def inner():\n    raise OSError('no disk')\n\ninner()\n")
    assert report.reason.endswith(f"OSError: no disk ({site}/mstar_deep/__init__.py:2)")
    assert next(line for line in report.details.splitlines() if "File" in line).endswith("line 4, in <module>")


def test_load_when_a_plugin_raises_an_error_of_ours_reports_it_too(site):
    source = "from mstar_core.errors import CheckpointError\nraise CheckpointError('no file')\n"
    report = outcome(site, "mstar-ours", source)
    assert (report.status, report.reason) == (Status.BROKEN, "no file")


def test_load_when_interrupted_passes_the_interrupt_on(site):
    with pytest.raises(KeyboardInterrupt):
        outcome(site, "mstar-interrupt", "raise KeyboardInterrupt")


def test_load_of_another_plugin_interface_is_incompatible_and_still_names_its_models(site):
    report = outcome(site, "mstar-future", toy_source("future", "mstar_future", api=99))
    assert (report.status, report.models) == (Status.INCOMPATIBLE, ("future",))
    assert report.reason == "wanted plugin interface 99, found 1 (mstar-core 0.1.0)"
    assert report.remedy == "pip install --upgrade mstar-core mstar-future"


def test_load_of_a_plugin_that_prints_keeps_stdout_clean(site, capsys):
    outcome(site, "mstar-chatty", "print('hello')\n" + toy_source("chatty", "mstar_chatty"))
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "hello\n")


def test_load_of_a_plugin_with_two_entry_points_asks_both(site):
    info = install(site, "mstar-pair", IMPL + "def mstar_engines(): return [('first', 'm:A')]")
    (site / "mstar_pair" / "more.py").write_text(IMPL + "def mstar_engines(): return [('second', 'm:B')]")
    (info / "entry_points.txt").write_text("[mstar_core.plugins]\na = mstar_pair\nb = mstar_pair.more\n")
    (found,) = discover([str(site)]).plugins
    plugin = load(found)
    assert set(plugin.extensions["mstar_engines"]) == {("first", "m:A"), ("second", "m:B")}


def test_an_owner_hook_that_raises_names_plugin_version_and_hook(toy_card):
    class Raises:
        @hookimpl
        def mstar_models(self):
            return [toy_card]

        @hookimpl
        def mstar_nodes(self):
            raise LookupError("gone")

    (plugin,) = registry_with(Raises()).plugins
    expected = r"mstar_nodes of plugin raises 0 raised LookupError: gone \(.*test_load\.py:\d+\)"
    with pytest.raises(PluginError, match=expected):
        plugin.nodes(toy_card, None)


def test_an_owner_hook_that_is_missing_or_returns_nothing_is_named(toy_card, tmp_path):
    class Silent:
        @hookimpl
        def mstar_models(self):
            return [toy_card]

        @hookimpl
        def mstar_config(self):
            return None

        @hookimpl
        def mstar_state_machine(self):
            return object()

    (plugin,) = registry_with(Silent()).plugins
    with pytest.raises(PluginError, match="plugin silent 0 registers a model and implements no mstar_walks"):
        plugin.walks(toy_card, None)
    with pytest.raises(PluginError, match="mstar_config must return a ModelConfig, not None"):
        plugin.config(toy_card, tmp_path)
    with pytest.raises(PluginError, match=r"type object\) has no start\(\)"):
        plugin.state_machine(toy_card, None)
