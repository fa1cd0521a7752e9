import pytest

from mstar_core import hookimpl
from mstar_core.errors import PluginError, UnknownModel
from mstar_core.plugins.plugin_set import PluginSet
from mstar_core.plugins.registry import load_registry
from mstar_core.plugins.report import Status
from mstar_core.testing.distributions import install, toy_source
from mstar_core.testing.plugins import registry_with


def toy(site, name, model, **options):
    package = name.replace("-", "_")
    install(site, name, toy_source(model, package), **options)


def test_registry_when_two_plugins_claim_a_model_uses_neither_and_names_both(site):
    toy(site, "mstar-one", "twin")
    toy(site, "mstar-two", "twin", version="2.0")
    toy(site, "mstar-other", "other")
    registry = load_registry([str(site)])
    assert [card.name for card in registry.cards] == ["other"]
    statuses = {report.name: report.status for report in registry.reports}
    assert statuses == {"mstar-one": Status.DUPLICATE, "mstar-two": Status.DUPLICATE, "mstar-other": Status.OK}
    with pytest.raises(PluginError, match=r"registered by mstar-one 1\.0 and mstar-two 2\.0; neither is used"):
        registry.card("twin")


def test_registry_when_one_of_two_rivals_is_blocked_uses_the_other(site, monkeypatch):
    toy(site, "mstar-three", "twin")
    toy(site, "mstar-four", "twin")
    monkeypatch.setenv("MSTAR_BLOCK_PLUGINS", "mstar-three")
    assert load_registry([str(site)]).owner("twin").found.name == "mstar-four"


def test_registry_asked_for_a_broken_plugins_model_gives_its_reason(site):
    install(site, "mstar-hurt", "import nowhere")
    toy(site, "mstar-fine", "fine")
    registry = load_registry([str(site)])
    assert registry.card("fine").name == "fine"
    with pytest.raises(PluginError, match=r"'hurt' is not available: plugin mstar-hurt 1.0 is broken: .*'nowhere'"):
        registry.card("hurt")


def test_registry_asked_for_an_unknown_model_gives_the_nearest_and_who_is_missing(site):
    install(site, "mstar-sick", "import nowhere")
    toy(site, "mstar-good", "good")
    with pytest.raises(UnknownModel) as caught:
        load_registry([str(site)]).card("goood")
    message = str(caught.value)
    assert "(did you mean 'good'?); available: good" in message
    assert "could not be used: mstar-sick 1.0" in message


def test_registry_when_nothing_is_installed_says_so(tmp_path):
    with pytest.raises(UnknownModel, match="no plugin that is installed registers a model"):
        load_registry([str(tmp_path)]).card("toy")


class Fast:
    @hookimpl
    def mstar_engines(self):
        return [("fast", "fast.engine:Engine")]


class AlsoFast(Fast):
    pass


def test_extension_of_one_plugin_is_its_target():
    core = {"slow": "core:Slow"}
    registry = registry_with(Fast())
    assert registry.extension("mstar_engines", "fast", core) == "fast.engine:Engine"
    assert registry.extension("mstar_engines", "slow", core) == "core:Slow"


def test_extension_that_two_parties_claim_is_refused_naming_both():
    with pytest.raises(PluginError, match="'fast' is claimed by fast 0 and alsofast 0"):
        registry_with(Fast(), AlsoFast()).extension("mstar_engines", "fast", {})
    with pytest.raises(PluginError, match="'fast' is claimed by fast 0 and mstar-core"):
        registry_with(Fast()).extension("mstar_engines", "fast", {"fast": "core:Fast"})


def test_extension_of_an_unknown_name_gives_the_nearest():
    with pytest.raises(PluginError, match=r"unknown name 'fats' \(did you mean 'fast'\?\); known: fast"):
        registry_with(Fast()).extension("mstar_engines", "fats", {})


def test_plugin_set_of_equal_sets_has_one_digest_and_no_difference():
    ours, theirs = (PluginSet("0.1.0", (("mstar-a", "1.0"),)) for _ in range(2))
    assert ours.digest == theirs.digest
    assert ours.difference(theirs) == ""


def test_plugin_set_of_other_sets_says_what_differs():
    parent = PluginSet("0.1.0", (("mstar-a", "1.0"), ("mstar-b", "1.0"), ("mstar-c", "3")))
    worker = PluginSet("0.1.1", (("mstar-a", "1.1"), ("mstar-c", "3"), ("mstar-d", "1.0")))
    assert parent.digest != worker.digest
    assert parent.difference(worker).splitlines() == [
        "mstar-a: 1.0 in the parent, 1.1 in the worker",
        "mstar-b: 1.0 in the parent, absent in the worker",
        "mstar-core: 0.1.0 in the parent, 0.1.1 in the worker",
        "mstar-d: absent in the parent, 1.0 in the worker",
    ]


def test_plugin_set_of_a_registry_holds_the_plugins_in_use_only(site):
    toy(site, "mstar-used", "used", version="1.5")
    install(site, "mstar-unused", "import nowhere")
    assert load_registry([str(site)]).plugin_set.plugins == (("mstar-used", "1.5"),)
