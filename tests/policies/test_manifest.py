"""The manifest's JSON: canonical when written, distrusted when read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest

from policies.errors import RunError
from policies.manifest import (
    FileRecord,
    TornManifestError,
    canonical_json,
    decode_manifest,
    encode_manifest,
    manifest_sha256,
)

URL = "/runs/a/versions/00000003/manifest.json"
PARENT = {"version": 2, "sha256": "ab" * 32}


def _facts() -> dict[str, Any]:
    return {
        "files": [
            FileRecord.of("weights", ".safetensors", b"w"),
            FileRecord.of("env", ".arrow", b"e"),
        ],
        "policies": {
            "default_policy": {"weights": FileRecord.of("weights", ".safetensors", b"w").name}
        },
        "metrics": {"loss": 0.1, "learner": {"kl": 1e-9}},
        "evaluation": {"episodes": 20, "return_mean": 195.5},
        "env_steps": 4096,
    }


def _reversed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _reversed(value[key]) for key in reversed(value)}
    return value


def test_equal_facts_give_equal_bytes_whatever_the_order_of_keys_and_files() -> None:
    other = _reversed(_facts())
    other["files"] = [record.to_json() for record in reversed(other["files"])]
    other["env_steps"] = np.int64(4096)
    other["metrics"]["loss"] = np.float64(0.1)
    first = encode_manifest(3, _facts(), PARENT)
    assert encode_manifest(3, other, PARENT) == first
    assert manifest_sha256(first) == hashlib.sha256(first).hexdigest()
    assert decode_manifest(3, first, URL)["metrics"] == {"loss": 0.1, "learner": {"kl": 1e-9}}


def test_nothing_is_in_a_manifest_but_what_was_given() -> None:
    manifest = orjson.loads(encode_manifest(3, _facts(), PARENT))
    assert set(manifest) == {*_facts(), "version", "schema_version", "parent"}


def test_each_cut_of_a_manifest_is_torn() -> None:
    data = encode_manifest(3, _facts(), PARENT)
    for length in range(len(data) - 1):
        with pytest.raises(TornManifestError, match="manifest.json is torn"):
            decode_manifest(3, data[:length], URL)
        with pytest.raises(TornManifestError):
            decode_manifest(3, data[:length] + b"\0" * (len(data) - length), URL)


@pytest.mark.parametrize("schema_version", [2, 0, "1", None, 1.0, True])
def test_an_unknown_schema_version_is_named(schema_version: object) -> None:
    data = canonical_json({"schema_version": schema_version, "version": 3})
    with pytest.raises(RunError, match=f"{URL} has schema_version {schema_version!r}.* reads 1"):
        decode_manifest(3, data, URL)


@pytest.mark.parametrize(
    "name",
    [
        "../weights-{}.safetensors",
        "/etc/weights-{}.safetensors",
        "a/b-{}.safetensors",
        "a\\b-{}.safetensors",
        "..-{}.arrow",
        ".tmp-{}.arrow",
        "weights-{}.pkl",
        "weights-{}",
        "weights-{}.safetensors\n",
        "weights-0123456789abcdef.safetensors",
        "manifest.json",
        "",
        7,
        None,
    ],
)
def test_file_names_that_could_leave_their_folder_are_refused(name: object) -> None:
    digest = hashlib.sha256(b"w").hexdigest()
    text = name.format(digest[:16]) if isinstance(name, str) else name
    manifest = orjson.loads(encode_manifest(3, _facts(), PARENT))
    manifest["files"][0] = {"name": text, "size": 1, "sha256": digest}
    with pytest.raises(RunError, match="not a valid manifest: file name"):
        decode_manifest(3, canonical_json(manifest), URL)


def _set(**changes: object) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest.update(changes)


def _set_rollouts(shards: object) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest.update(
        rollouts={"file": manifest["files"][0]["name"], "shards": shards}
    )


def _set_file(**changes: object) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["files"][0].update(changes)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_set(version=4), "version is 4, expected 3"),
        (_set(version=True), "version is True"),
        (_set(parent=None), "has no parent"),
        (_set(parent={"version": 3, "sha256": "ab" * 32}), "parent version 3 is not below 3"),
        (_set(parent={"version": 2, "sha256": "xy"}), "parent sha256 'xy'"),
        (_set(parent=[]), "parent is neither"),
        (_set(files={}), "files is not a list"),
        (_set(files=["weights"]), "'weights' is not an object"),
        (_set(policies=[]), "policies is not an object"),
        (_set(metrics=1), "metrics is not an object"),
        (_set(metrics=None), "metrics is not an object"),
        (_set(evaluation=[]), "evaluation is neither"),
        (_set(evaluation={"mean": "5"}), "evaluation.mean '5' is neither"),
        (_set(evaluation={"mean": True}), "evaluation.mean True is neither"),
        (_set(env_steps=-1), "env_steps -1 is not"),
        (_set(env_steps=2**63), "env_steps 9223372036854775808 is not"),
        (_set(env_steps=True), "env_steps True is not"),
        (_set(env_steps=1.0), "env_steps 1.0 is not"),
        (_set(env_steps=None), "env_steps None is not"),
        (_set(recent_returns=None), "recent_returns is not a list"),
        (_set(recent_returns=[0] * 1_000_001), "recent_returns is not a list of up to 1,000,000"),
        (_set(recent_returns=[1.0, "2"]), r"recent_returns\[1\] '2' is not"),
        (_set(recent_returns=[False]), r"recent_returns\[0\] False is not"),
        (_set(policies={"a": "weights"}), "policy 'a' is not an object"),
        (_set(policies={"a": {"weights": "../w"}}), "weights '../w' of policy 'a' is not in files"),
        (_set(policies={"a": {"optimizer": None}}), "optimizer None of policy 'a' is not in"),
        (_set(rollouts=[]), "rollouts is neither"),
        (_set(rollouts={"file": "x"}), "rollouts is neither"),
        (_set(rollouts={"file": "x", "shards": {}}), "rollouts file 'x' is not in files"),
        (_set_rollouts([]), "rollouts shards is not an object"),
        (_set_rollouts({"0": "AB" * 32}), "of shard '0' is not 64 hex digits"),
        (_set_rollouts({"0": 7}), "sha256 7 of shard '0'"),
        (lambda m: m.pop("evaluation"), "evaluation is neither"),
        (lambda m: m.pop("parent"), "parent is neither"),
        (lambda m: m["files"].append(m["files"][0]), "lists a name twice"),
        (_set_file(size=-1), "size -1"),
        (_set_file(size=1.0), "size 1.0"),
        (_set_file(size=2**60), "size 1152921504606846976"),
        (_set_file(sha256="AB" * 32), "64 lower-case hex digits"),
        (_set_file(sha256=5), "64 lower-case hex digits"),
        (_set_file(url="http://elsewhere"), "not an object of name, size and sha256"),
    ],
)
def test_malformed_content_is_an_error_that_says_what(
    change: Callable[[dict[str, Any]], None], complaint: str
) -> None:
    manifest = orjson.loads(encode_manifest(3, _facts(), PARENT))
    change(manifest)
    with pytest.raises(RunError, match=complaint) as caught:
        decode_manifest(3, canonical_json(manifest), URL)
    assert URL in str(caught.value) and "\n" not in str(caught.value)
    assert not isinstance(caught.value, TornManifestError)


@pytest.mark.parametrize("data", [b"[]", b"3", b"null", b'"text"'])
def test_json_that_is_no_object_is_not_a_manifest(data: bytes) -> None:
    with pytest.raises(RunError, match="holds no JSON object"):
        decode_manifest(3, data, URL)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"metrics": {"loss": float("nan")}}, "metrics.loss is nan"),
        ({"a": [1.0, np.float32("inf")]}, r"a\[1\] is inf"),
        ({"a": {1: 2}}, "a has the key 1"),
        ({"a": np.zeros(2)}, "a is a ndarray"),
        ({"a": 2**70}, "cannot be written as JSON"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_place(value: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        canonical_json(value)


def test_a_manifest_cannot_claim_another_version() -> None:
    with pytest.raises(ValueError, match="version is 9 in the manifest and 3 by its place"):
        encode_manifest(3, {**_facts(), "version": 9}, PARENT)


@pytest.mark.parametrize("stem", ["", "a/b", "../a", ".a", "ü", "a" * 200])
def test_stems_that_make_unsafe_names_are_refused(stem: str) -> None:
    with pytest.raises(ValueError, match="stem"):
        FileRecord.of(stem, ".arrow", b"")


def test_a_stem_may_hold_dashes() -> None:
    record = FileRecord.of("policy-1-weights", ".safetensors", b"x")
    assert record.stem == "policy-1-weights"
    assert FileRecord.from_json(record.to_json()) == record


def test_every_checked_fact_may_be_there_or_absent() -> None:
    facts = _facts()
    name = facts["files"][0].name
    facts["policies"] = {"a": {"weights": name, "optimizer": name}, "b": {}}
    facts["recent_returns"] = [1, -2.5]
    facts["env_steps"] = 2**63 - 1
    facts["rollouts"] = {"file": name, "shards": {"0": "ab" * 32}}
    for mean in (1.5, 3, None):
        facts["evaluation"] = {"mean": mean}
        manifest = decode_manifest(3, encode_manifest(3, facts, PARENT), URL)
        assert manifest["evaluation"] == {"mean": mean}
        assert manifest["rollouts"] == facts["rollouts"]
    assert decode_manifest(3, encode_manifest(3, {"rollouts": None}, PARENT), URL)["files"] == []
