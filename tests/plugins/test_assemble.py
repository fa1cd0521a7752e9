import pytest

from mstar_core.errors import CheckpointError, PluginError, SpecError
from mstar_core.plugins.assemble import assemble, locate
from mstar_core.plugins.discovery import discover
from mstar_core.plugins.probe import examine
from mstar_core.plugins.registry import load_registry
from mstar_core.testing.distributions import TOY_FILES, install, toy_source


def installed(site, model, replaced=("", ""), files=TOY_FILES):
    package = f"mstar_{model}"
    install(site, f"mstar-{model}", toy_source(model, package).replace(*replaced), files=files)
    return load_registry([str(site)])


def test_assemble_of_a_sound_model_gives_one_validated_spec(site):
    registry = installed(site, "sound")
    spec = assemble(registry, "sound", locate(registry.card("sound")))
    assert (spec.card.name, [node.name for node in spec.nodes], spec.partitions) == ("sound", ["echo"], ("main",))


def test_assemble_of_parts_that_do_not_fit_names_the_plugin_and_the_fault(site):
    registry = installed(site, "unfit", ('Run("echo")', 'Run("ecko")'))
    with pytest.raises(SpecError, match=r"(?s)model 'unfit' of plugin mstar-unfit 1.0.*'ecko'"):
        assemble(registry, "unfit", locate(registry.card("unfit")))


def test_assemble_when_the_config_hook_raises_names_the_hook(site):
    registry = installed(site, "bare", files={"tiny/other.json": "{}"})
    with pytest.raises(PluginError, match=r"mstar_config of plugin mstar-bare 1\.0 raised FileNotFoundError"):
        assemble(registry, "bare", locate(registry.card("bare")))


def test_assemble_when_the_plugin_raises_a_checkpoint_error_passes_it_with_its_origin(site):
    source = 'raise __import__("mstar_core.errors").errors.CheckpointError("no layers")'
    registry = installed(site, "layers", ("return ModelConfig", f"{source}\n    return ModelConfig"))
    with pytest.raises(CheckpointError, match="no layers") as caught:
        assemble(registry, "layers", locate(registry.card("layers")))
    assert caught.value.__notes__ == ["raised by mstar_config of plugin mstar-layers 1.0"]


def verdict(site, model, *, static=False, replaced=("", "")):
    installed(site, model, replaced)
    (found,) = discover([str(site)]).plugins
    return examine(found, static=static)


def test_examine_of_a_sound_plugin_finds_nothing(site):
    judged = verdict(site, "healthy")
    assert judged.sound
    assert judged.problems == {"healthy": ()}


def test_examine_of_a_bad_graph_lists_it_unless_static(site):
    judged = verdict(site, "bent", replaced=('Run("echo")', 'Run("ecko")'))
    assert not judged.sound
    assert "ecko" in judged.problems["bent"][0]
    (found,) = discover([str(site)]).plugins
    assert examine(found, static=True).sound


def test_examine_of_a_factory_in_a_module_that_is_absent_says_so(site):
    judged = verdict(site, "absent", replaced=(".nodes:build", ".knots:build"))
    assert judged.problems["absent"] == (
        "node 'echo': its factory 'mstar_absent.knots:build' names a module that does not exist",
    )
