from mstar_core.spec.chunks import FixedChunkPolicy
from mstar_core.spec.graph import (
    FLAG,
    DynamicLoop,
    Emit,
    Loop,
    Node,
    Parallel,
    Param,
    Port,
    Run,
    Sequential,
    StreamEnd,
    StreamingEdge,
    Walk,
)
from mstar_core.spec.model import ModelCard, ModelConfig, ModelSpec
from mstar_core.spec.render import to_mermaid, to_text


def node(name, inputs, outputs):
    return Node(name=name, engine="stateless", inputs=inputs, outputs=outputs, factory="toy.nodes:build")


SPEC = ModelSpec(
    card=ModelCard(name="toy", family="toy", summary="", inputs=("text",), outputs=("audio",), checkpoints=()),
    config=ModelConfig(values=None, parameters=()),
    nodes=(
        node("lm", (Port("ids", "int64", ("tokens",)),), (Port("code", "int64", (7,)), Port("stop", FLAG))),
        node("refine", (Port("code"),), (Port("code"),)),
        node("codec", (Port("code"),), (Port("sound", "float32", sparse=True),)),
    ),
    walks=(
        Walk(
            name="speak",
            partition="talk",
            reports=("stop",),
            body=Sequential(
                DynamicLoop(Run("lm", {"ids": "prompt"}), Param("max_tokens", -1), "stop", gather=("code",)),
                Parallel(Loop(Run("refine"), Param("steps")), Loop(Run("lm"), 2)),
            ),
        ),
        Walk(
            name="decode",
            partition="sound",
            body=DynamicLoop(Sequential(Run("codec"), Emit("sound", "audio")), None, StreamEnd("codec", "code")),
        ),
    ),
    edges=(StreamingEdge(source="lm.code", target="codec.code", policy=FixedChunkPolicy(7), outlives=True),),
    inputs=(),
    machine=None,
)


def test_text_of_a_model_shows_nodes_walks_loops_and_streams():
    assert to_text(SPEC) == (
        "toy: text -> audio\n"
        "\n"
        "nodes\n"
        "  lm      stateless  ids int64[tokens] -> code int64[7], stop flag\n"
        "  refine  stateless  code any -> code any\n"
        "  codec   stateless  code any -> sound float32 sparse\n"
        "\n"
        "partition talk\n"
        "  walk speak (reports stop)\n"
        "    until stop, at most max_tokens - 1 times, gathering code\n"
        "      lm: prompt -> code, stop\n"
        "    at once\n"
        "      - steps times\n"
        "          refine: code -> code\n"
        "      - 2 times\n"
        "          lm: ids -> code, stop\n"
        "\n"
        "partition sound\n"
        "  walk decode\n"
        "    until the stream into codec.code ends\n"
        "      codec: stream code -> sound\n"
        "      emit sound as audio\n"
        "\n"
        "streams\n"
        "  lm.code -> codec.code  FixedChunkPolicy(size=7), buffer of 28 items, outlives its producer"
    )


def test_mermaid_of_a_model_links_runs_in_order_and_streams_across_partitions():
    lines = [line.strip() for line in to_mermaid(SPEC).splitlines()]
    assert lines[0] == "flowchart LR"
    assert lines.count("end") == sum(line.startswith("subgraph") for line in lines) == 8
    boxes = {line[: line.index("[") if "[" in line else None]: line for line in lines if line.startswith("n")}
    first, refine, second = (name for name, line in boxes.items() if '["lm"]' in line or '["refine"]' in line)
    assert f"{first} --> {refine}" in lines
    assert f"{first} --> {second}" in lines
    assert f"{refine} -- again --> {refine}" in lines
    codec = next(name for name, line in boxes.items() if '["codec"]' in line)
    assert f'{first} -. "code: FixedChunkPolicy(size=7)" .-> {codec}' in lines
    assert any(line.endswith('(["audio"])') for line in lines)
