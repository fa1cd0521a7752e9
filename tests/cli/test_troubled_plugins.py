"""Faults of plugins, seen from the command line: the sound are listed and drawn, the others named with a remedy."""

import pytest


def test_list_models_with_broken_plugins_exits_0_and_lists_the_sound(troubled):
    result = troubled.run("list-models", "--json")
    assert result.returncode == 0
    assert [model["name"] for model in troubled.json("list-models")["models"]] == ["moved", "toy"]


@pytest.mark.parametrize(
    ("plugin", "status", "reason"),
    [
        ("mstar-needy", "broken", "No module named 'module_that_is_absent'"),
        ("mstar-exits", "broken", "SystemExit: 3"),
        ("mstar-raises", "broken", "mstar_models of plugin mstar-raises 1.0 raised ZeroDivisionError"),
        ("mstar-one", "duplicate", "model 'twin' is also claimed by mstar-two 1.0"),
        ("mstar-two", "duplicate", "model 'twin' is also claimed by mstar-one 1.0"),
        ("mstar-future", "incompatible", "wanted plugin interface 99, found 1"),
        ("mstar-old", "incompatible", "wanted mstar-core<0.1, found mstar-core 0.1.0"),
    ],
)
def test_list_models_names_each_culprit_with_its_reason_and_remedy(troubled, plugin, status, reason):
    problems = {problem["name"]: problem for problem in troubled.json("list-models")["problems"]}
    assert problems[plugin]["status"] == status
    assert reason in problems[plugin]["reason"]
    assert problems[plugin]["remedy"]


def test_plugins_shows_every_status_and_both_paths_of_a_shadowed_copy(troubled):
    result = troubled.run("plugins")
    assert result.returncode == 0
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("mstar-")]
    statuses = {(row[0], row[2]) for row in rows if len(row) >= 3 and row[1] != "is"}
    assert {(name, status) for name in ("mstar-toy", "mstar-moved") for status in ("ok", "shadowed")} < statuses
    assert {("mstar-needy", "broken"), ("mstar-old", "incompatible"), ("mstar-one", "duplicate")} < statuses
    for copy in ("early/mstar_toy-1.0.dist-info", "late/mstar_toy-1.0.dist-info"):
        assert str(troubled.early.parent / copy) in result.stdout


def test_graph_beside_broken_plugins_and_a_torch_that_raises_draws_the_model(troubled):
    result = troubled.run("graph", "toy")
    assert (result.returncode, result.stderr) == (0, "")
    assert "echo: text -> reply" in result.stdout


def test_graph_of_a_broken_plugins_model_gives_that_reason_and_no_traceback(troubled):
    result = troubled.run("graph", "needy")
    assert result.returncode == 1
    assert result.stderr.startswith("error: model 'needy' is not available: plugin mstar-needy 1.0 is broken: import")
    assert "module_that_is_absent" in result.stderr
    assert "Traceback" not in result.stderr


def test_blocking_one_of_two_rivals_mends_their_clash(troubled):
    result = troubled.run("graph", "twin", "--format", "mermaid", block="mstar-two")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("flowchart")


def test_check_static_survives_plugins_that_kill_or_hang_their_process(deadly):
    result = deadly.run("check", "--static", "--timeout", "5", "--json")
    assert result.returncode == 1
    reports = {report["name"]: report for report in deadly.json("check", "--static", "--timeout", "5")["plugins"]}
    assert reports["mstar-toy"]["status"] == "ok"
    assert "ended the process, with exit status 0" in reports["mstar-kills"]["reason"]
    assert "did not finish within 5 s" in reports["mstar-sleeps"]["reason"]


def test_check_of_one_sound_model_exits_0_and_judges_its_graph(deadly):
    result = deadly.run("check", "toy", block="mstar-kills,mstar-sleeps")
    assert (result.returncode, result.stdout) == (0, "mstar-toy 1.0: ok\n  toy: ok\n")
