"""Stored responses: continuing, fetching, forgetting; bounds; several API workers; ``truncation: auto``."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.api.responses.store import ResponseStore, StoredResponse
from appliance.api.served_model import ServedModel
from tests.api.conftest import MakeBox
from tests.api.harness import NAME, Box, assert_error
from tests.api.responses.conftest import respond
from tests.api.responses.reading import read_response_events
from tests.api.responses.test_answers import CALL, TOOL, MakeSpeaker

UNKNOWN = "resp_" + "0" * 32


def prompt_of(box: Box, model: ServedModel) -> str:
    """The last prompt that the engine got."""
    requests = getattr(box.engine, "requests", None) or box.engine.submitted
    return model.tokenizer.decode(requests[-1].prompt_token_ids, False)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_continue_a_conversation(make_speaker: MakeSpeaker, text_side: ServedModel, is_streamed: bool) -> None:
    box = await make_speaker("Paris.", "Two million.", "Yes.")
    ids: list[str | None] = [None]
    for question in ("Capital of France?", "How many people?", "Sure?"):
        response = await respond(
            box, input=question, instructions=f"Turn {len(ids)}", previous_response_id=ids[-1], stream=is_streamed,
            max_output_tokens=50,
        )  # fmt: skip
        answer = read_response_events(response.text)[-1]["response"] if is_streamed else response.json()
        assert answer["previous_response_id"] == ids[-1]
        ids.append(answer["id"])
    prompt = prompt_of(box, text_side)
    said = ["Turn 3", "Capital of France?", "Paris.", "How many people?", "Two million.", "Sure?"]
    assert sorted(said, key=prompt.index) == said
    assert "Turn 1" not in prompt  # instructions are each request's own
    # A branch from the first answer knows nothing of the later ones.
    await respond(box, input="And Spain?", previous_response_id=ids[1])
    assert "Paris." in (prompt := prompt_of(box, text_side))
    assert "Two million." not in prompt


async def test_continue_after_a_call(make_speaker: MakeSpeaker, text_side: ServedModel) -> None:
    box = await make_speaker(f"<think>Hm.</think>{CALL}", "It rains.")
    first = (await respond(box, tools=[TOOL], max_output_tokens=99)).json()
    call = next(item for item in first["output"] if item["type"] == "function_call")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    second = await respond(box, input=[output], previous_response_id=first["id"], tools=[TOOL], max_output_tokens=99)
    assert second.json()["output"][0]["content"][0]["text"] == "It rains."
    prompt = prompt_of(box, text_side)
    assert prompt.index('"city": "Oslo"') < prompt.index("rain")


async def test_get_delete_and_cancel(store_box: Box) -> None:
    answer = (await respond(store_box)).json()
    path = f"/v1/responses/{answer['id']}"
    assert (await store_box.client.get(path)).json() == answer
    assert_error(await store_box.client.get(path, params={"stream": "true"}), 400, "stream")
    assert_error(await store_box.client.post(f"{path}/cancel"), 400, "response_id")
    assert (await store_box.client.delete(path)).json() == {"id": answer["id"], "object": "response", "deleted": True}
    for response in (
        await store_box.client.get(path), await store_box.client.delete(path),
        await store_box.client.post(f"{path}/cancel"), await store_box.client.get(f"/v1/responses/{UNKNOWN}"),
        await store_box.client.get("/v1/responses/..%2Fsettings"), await store_box.client.get("/v1/responses/settings"),
    ):  # fmt: skip
        assert response.status_code == 404
    missing = await respond(store_box, previous_response_id=answer["id"])
    assert_error(missing, 404, "previous_response_id", "previous_response_not_found")


async def test_openai_sdk_keeps_and_fetches(store_box: Box) -> None:
    import openai

    client = openai.AsyncOpenAI(base_url="http://box/v1", api_key="x", http_client=store_box.client, max_retries=0)
    created = await client.responses.create(model="smol", input="hi", max_output_tokens=3)
    assert (await client.responses.retrieve(created.id)).output_text == created.output_text
    with pytest.raises(openai.BadRequestError):
        await client.responses.cancel(created.id)
    await client.responses.delete(created.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(created.id)


async def test_nothing_is_kept_unasked(store_box: Box, make_box: MakeBox, tmp_path: Path) -> None:
    answer = (await respond(store_box, store=False)).json()
    assert answer["store"] is False
    assert (await store_box.client.get(f"/v1/responses/{answer['id']}")).status_code == 404
    for settings in ({"run_dir": tmp_path, "responses_store_max": 0}, {"run_dir": None}):
        box = await make_box(**settings)
        answer = (await respond(box, store=True)).json()
        assert answer["store"] is False
        assert (await box.client.get(f"/v1/responses/{answer['id']}")).status_code == 404


async def test_any_worker_finds_it(make_box: MakeBox, tmp_path: Path) -> None:
    one, other = await make_box(run_dir=tmp_path), await make_box(run_dir=tmp_path)
    answer = (await respond(one)).json()
    assert (await other.client.get(f"/v1/responses/{answer['id']}")).json() == answer
    assert (await respond(other, previous_response_id=answer["id"])).status_code == 200


KEYS = ("one-0123456789abcdef", "two-0123456789abcdef")


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_another_keys_response_is_like_one_that_never_was(
    make_box: MakeBox, tmp_path: Path, is_streamed: bool
) -> None:
    box = await make_box(run_dir=tmp_path, api_key=KEYS)
    mine, others = ({"authorization": f"Bearer {key}"} for key in KEYS)

    async def ask(method: str, path: str, headers: dict[str, str], **fields: Any) -> tuple[int, str]:
        body = {"model": NAME, "input": "hi", "max_output_tokens": 4, **fields} if path == "" else None
        response = await box.client.request(method, f"/v1/responses{path}", json=body, headers=headers)
        return response.status_code, response.text

    status, text = await ask("POST", "", mine, stream=is_streamed)
    assert status == 200
    response_id = (read_response_events(text)[-1]["response"] if is_streamed else json.loads(text))["id"]
    for method, path, fields in (
        ("GET", "/{}", []), ("DELETE", "/{}", []), ("POST", "/{}/cancel", []), ("POST", "", ["previous_response_id"]),
    ):  # fmt: skip
        status, text = await ask(method, path.format(response_id), others, **dict.fromkeys(fields, response_id))
        unknown = await ask(method, path.format(UNKNOWN), others, **dict.fromkeys(fields, UNKNOWN))
        assert (status, text.replace(response_id, UNKNOWN)) == unknown
        assert status == 404
    assert (await ask("GET", f"/{response_id}", mine))[0] == 200
    assert (await ask("POST", "", mine, previous_response_id=response_id))[0] == 200
    assert (await ask("DELETE", f"/{response_id}", mine))[0] == 200


async def test_anothers_is_not_even_touched(tmp_path: Path) -> None:
    """Nor read: how long it takes to be refused must not depend on what it is."""
    mine, others = (replace(make_store(tmp_path), owner=owner) for owner in ("mine", "others"))
    await mine.put(stored(1))
    before = list_files(tmp_path)
    assert await others.get(id_of(1)) is None
    assert not await others.delete(id_of(1))
    assert list_files(tmp_path) == before
    await others.put(StoredResponse({"id": id_of(1), "text": "of another"}, []))
    assert await mine.get(id_of(1)) == stored(1)


@pytest.mark.parametrize("bounds", [{"max_count": 10}, {"max_bytes": 25_000}])
async def test_a_flood_pushes_out_only_its_own(tmp_path: Path, bounds: dict[str, int]) -> None:
    store = make_store(tmp_path, **bounds)
    quiet, flood = (replace(store, owner=owner) for owner in ("quiet", "flood"))
    for number in range(3):
        await quiet.put(stored(number, 2_000))
    for number in range(100, 140):
        await flood.put(stored(number, 2_000))
    assert [number for number in range(3) if await quiet.get(id_of(number))] == [0, 1, 2]
    kept = [number for number in range(100, 140) if await flood.get(id_of(number))]
    assert len(kept) >= 7
    assert kept == list(range(140 - len(kept), 140))


def list_files(folder: Path) -> list[os.stat_result]:
    """What is in the store's folder."""
    return [path.stat() for path in folder.iterdir()]


def id_of(number: int) -> str:
    return f"resp_{number:032x}"


def make_store(folder: Path, max_count: int = 1_000, max_bytes: int = 1_000_000) -> ResponseStore:
    return ResponseStore(folder, max_count, max_bytes)


def stored(number: int, size: int = 0) -> StoredResponse:
    response = {"id": id_of(number), "text": "x" * size}
    return StoredResponse(response, [{"type": "message", "role": "user", "content": "hi"}])


async def test_the_longest_unused_goes_first(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path / "responses", max_count=3, max_bytes=10_000)
    for number in range(3):
        await store.put(stored(number))
        (file,) = (tmp_path / "responses").glob(f"{id_of(number)}.*")
        os.utime(file, (number, number))
    assert await store.get(id_of(0)) == stored(0)  # used, so it stays
    await store.put(stored(3))
    kept = [number for number in range(4) if await store.get(id_of(number))]
    assert kept == [0, 2, 3]


async def test_bytes_are_bounded(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path, max_count=100, max_bytes=10_000)
    for number in range(8):
        await store.put(stored(number, 3_000))
    assert sum(file.st_size for file in list_files(tmp_path)) <= 10_000
    assert len(list_files(tmp_path)) == 3
    await store.put(stored(9, 20_000))
    assert await store.get(id_of(9)) is None
    assert len(list_files(tmp_path)) == 3


async def test_many_writers_at_once(tmp_path: Path) -> None:
    stores = [ResponseStore(tmp_path, max_count=5, max_bytes=10_000_000) for _ in range(4)]
    jobs: list[Any] = [stores[number % 4].put(stored(number)) for number in range(60)]
    jobs += [stores[0].get(id_of(number)) for number in range(60)]
    await asyncio.gather(*jobs)
    await stores[0].put(stored(100))
    assert 1 <= len(list_files(tmp_path)) <= 5
    assert all(file.st_mode & 0o777 == 0o600 for file in list_files(tmp_path))


async def test_a_full_disk_costs_the_store_not_the_answer(make_box: MakeBox, tmp_path: Path) -> None:
    (tmp_path / "responses").write_text("in the way")
    box = await make_box(run_dir=tmp_path)
    assert (await respond(box)).status_code == 200


async def test_truncation_auto_drops_the_oldest_turns(make_box: MakeBox, text_side: ServedModel) -> None:
    box = await make_box(max_model_len=200)
    turns: list[dict[str, str]] = []
    for number in range(20):
        turns += [{"role": "user", "content": f"question {number} " + "word " * 10}]
        turns += [{"role": "assistant", "content": f"answer {number}"}]
    items = [{"role": "system", "content": "Be brief."}, *turns, {"role": "user", "content": "last"}]
    assert_error(await respond(box, input=items), 400, "input", "context_length_exceeded")
    answer = await respond(box, input=items, truncation="auto")
    assert answer.status_code == 200
    prompt = prompt_of(box, text_side)
    shown = [number for number in range(20) if f"question {number} " in prompt]
    assert shown
    assert shown == list(range(shown[0], 20))
    assert 120 < len(box.engine.submitted[-1].prompt_token_ids) < 200  # no more than had to go
    assert "Be brief." in prompt
    long = [{"role": "user", "content": "word " * 300}]
    assert_error(await respond(box, input=[*turns, *long], truncation="auto"), 400, "input", "context_length_exceeded")
    assert_error(await respond(box, input=long, truncation="auto"), 400, "input", "context_length_exceeded")
