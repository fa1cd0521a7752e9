import numpy as np
import pytest
import torch
from mstar_vjepa.config import MEAN, STD
from mstar_vjepa.pictures import pixels_of_frames
from mstar_vjepa.world.config import WorldConfig
from mstar_vjepa.world.encoder import FrameEncoder
from mstar_vjepa.world.pose import compose, difference
from mstar_vjepa.world.predictor import SlotRotary, load_predictor

from mstar_core.nn.transformer import attend_within
from mstar_core.spec.content import Image, Tensor

pytestmark = pytest.mark.golden


def by_frame(case, name, row, checkpoint):
    """Tokens `[frames * tokens, width]` of one row as `[frames, tokens, width]`."""
    grid = WorldConfig.read(checkpoint).patches
    flat = case.given(name)[row]
    return flat.reshape(-1, grid.tokens, flat.shape[-1])


def test_pixels_are_those_of_the_reference(frame_pictures):
    grid = WorldConfig.read(frame_pictures.directory).patches
    frames = frame_pictures.given("frames_uint8_THWC")
    pixels = pixels_of_frames(frames, size=(grid.height, grid.width), mean=MEAN, std=STD)
    frame_pictures.check(pixels.transpose(1, 0, 2, 3), "clip_CTHW")


def test_frames_are_encoded_one_by_one_as_the_reference_does(frames_case, served, ask):
    service = served("vjepa2-ac", frames_case.directory)
    pixels = frames_case.given("clip_BCTHW")[0].transpose(1, 0, 2, 3)
    latents = ask(service, [Tensor("pixels", pixels)], task="encode")["latents"][0]
    frames_case.check(latents.reshape(1, -1, latents.shape[-1]), "frame_tokens")
    picture = Image(frames_case.given("frames_uint8_THWC")[0])
    frames_case.check(ask(service, [picture], task="encode")["latents"][0], "encode_single_image_frame0")


def test_the_encoder_joins_the_frames_of_a_video_as_the_reference_does(video_case, context):
    model = FrameEncoder(context(video_case.directory)).model
    video_case.check(model.clips(video_case.tensors["in.clip_BCTHW"].transpose(1, 2).contiguous()), "tokens")


def test_every_block_of_the_encoder_gives_what_the_reference_gives(layers_case, context):
    model = FrameEncoder(context(layers_case.directory)).model
    pixels = layers_case.tensors["in.clip_BCTHW"].transpose(1, 2).contiguous()
    x = model.patches.clips(pixels)
    layers_case.check(x[None], "patch_embed")
    for index, block in enumerate(model.blocks):
        x = block(x, attend_within(1), model._rotary(pixels.shape[1] // 2))
        layers_case.check(x[None], f"block.{index}")
    layers_case.check(model.norm(x)[None], "norm")


def test_poses_are_composed_as_the_reference_does(pose_update):
    pose_update.check(compose(pose_update.given("pose"), pose_update.given("action")), "new_pose")


def test_the_difference_of_poses_is_that_of_the_reference(pose_diff):
    pose_diff.check(difference(pose_diff.given("start"), pose_diff.given("end")), "action")


def test_every_block_of_the_predictor_gives_what_the_reference_gives(one_step, context):
    made = context(one_step.directory)
    model, rotary = load_predictor(made), SlotRotary(made.config, made.device, made.dtype)
    frames = one_step.tensors["in.z"]
    conditions = torch.cat([one_step.tensors[f"in.{name}"][:, 0] for name in ("actions", "states")], dim=-1)
    x = model.tokens(frames, conditions)
    one_step.check(x.view(len(frames), made.config.slot, -1), "tokens_in")
    positions = torch.arange(made.config.slot).repeat(len(frames))
    for index, block in enumerate(model.blocks):
        x = block(x, attend_within(len(frames)), rotary.at(positions))
        one_step.check(x.view(len(frames), made.config.slot, -1), f"block.{index}")
    one_step.check(model.next_frames(x.view(len(frames), made.config.slot, -1)), "normalized")


def test_one_step_is_that_of_the_reference(one_step, served, ask):
    service = served("vjepa2-ac", one_step.directory)
    for row, frame in enumerate(one_step.given("z")):
        motion = [Tensor(name, one_step.given(name)[row]) for name in ("actions", "states")]
        made = ask(service, [Tensor("latents", frame), *motion])
        one_step.check(made["latents"][0], "normalized", row)
        one_step.check(made["states"][0], "next_state", (row, 0))


def test_given_frames_lead_to_what_the_reference_predicts_after_each(forced_case, checkpoint_of, served, ask):
    checkpoint = checkpoint_of(forced_case)
    service = served("vjepa2-ac", checkpoint)
    rows, slots = forced_case.given("actions").shape[:2]
    for row in range(rows):
        frames = by_frame(forced_case, "z", row, checkpoint)
        actions, states = (forced_case.given(name)[row] for name in ("actions", "states"))
        wanted = np.split(np.arange(frames.shape[0] * frames.shape[1]), slots)
        for last in range(slots):
            content = [Tensor("latents", frames[: last + 1]), Tensor("states", states[: last + 1])]
            content += [Tensor("past_actions", actions[:last])] if last else []
            if forced_case.has("extrinsics"):
                content.append(Tensor("extrinsics", forced_case.given("extrinsics")[row, : last + 1]))
            made = ask(service, [*content, Tensor("actions", actions[last : last + 1])])
            forced_case.check(made["latents"][0], "normalized", (row, wanted[last]))


def test_a_slot_sees_itself_and_all_before_it_as_in_the_references_mask(mask_case):
    config = WorldConfig.read(mask_case.directory)
    for name, slot in (("mask", config.slot), ("mask_extrinsics", config.slot + 1)):
        mask = mask_case.wanted(name)
        frame = np.arange(len(mask)) // slot
        assert (mask == (frame[:, None] >= frame[None])).all()


def test_another_grid_is_encoded_as_the_reference_does(other_grid, checkpoint_of, context):
    model = FrameEncoder(context(checkpoint_of(other_grid))).model
    other_grid.check(model.clips(other_grid.tensors["in.clip_BCTHW"].transpose(1, 2).contiguous()), "encoder_tokens")


def observed(case, row):
    """What a rollout's case observed, in a request's terms."""
    if case.has("image_uint8_HWC"):
        return [Image(case.given("image_uint8_HWC")), Tensor("states", case.given("state0")[row])]
    if case.has("z0"):
        return [Tensor("latents", case.given("z0")[row]), Tensor("states", case.given("state0")[row])]
    names = {"latents": "z_ctx", "states": "states_ctx", "past_actions": "actions_ctx"}
    return [Tensor(ours, case.given(theirs)[row]) for ours, theirs in names.items()]


def test_rollouts_are_those_of_the_reference_at_every_step(rollout_case, served, collect):
    service = served("vjepa2-ac", rollout_case.directory)
    contents = [
        [*observed(rollout_case, row), Tensor("actions", actions)]
        for row, actions in enumerate(rollout_case.given("actions"))
    ]
    tickets = [service.submit("vjepa2-ac", content, {}) for content in contents]  # at the same time
    for row, ticket in enumerate(tickets):
        made = collect(ticket)
        rollout_case.check(made["latents"], "latents", row)
        rollout_case.check(made["states"], "states", (row, slice(-rollout_case.params["H"], None)))


def test_rollouts_with_given_poses_are_those_of_the_reference(given_case, checkpoint_of, served, ask):
    service = served("vjepa2-ac", checkpoint_of(given_case))
    names = [name for name in ("actions", "states", "extrinsics") if given_case.has(name)]
    for row, frame in enumerate(given_case.given("z0")):
        made = ask(service, [Tensor("latents", frame), *(Tensor(name, given_case.given(name)[row]) for name in names)])
        given_case.check(made["latents"], "latents", row)


def test_energies_of_many_actions_are_those_of_the_reference(energy_case, served, ask):
    service = served("vjepa2-ac", energy_case.directory)
    start, *_, goal = by_frame(energy_case, "z", 0, energy_case.directory)
    repeat = energy_case.params["action_repeat"]
    content = [Tensor("latents", start), Tensor("goal_latents", goal), Tensor("states", energy_case.given("state0")[0])]
    made = ask(service, [*content, Tensor("actions", energy_case.wanted("actions")[:, :repeat])])
    energy_case.check(made["energies"][-1], "energy")
    energy_case.check(np.concatenate(made["latents"], axis=1), "latents")
    energy_case.check(np.stack(made["states"], axis=1), "states", (slice(None), slice(1, None)))
