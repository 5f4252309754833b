"""Metrics: what may be a label."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter

from gateway.labelled import Labelled
from tests.gateway.inhouse import CHAT, MODEL, Caller, Inhouse
from tests.gateway.test_attacks import token
from tests.gateway.test_line import lived

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def series(home: Inhouse) -> set[str]:
    lines = home.house.metrics.exposition().decode().splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


@pytest.mark.slow
def test_l6_many_subjects_make_no_series(tmp_path: Path) -> None:
    """Tenants are configured, so they are a label; whoever signs tokens names subjects."""

    async def story(home: Inhouse) -> None:
        for round_ in range(2):  # the first makes what there is for any
            names = [f"somebody-{round_}-{n}" for n in range(40)]
            tokens = [token(home, user=name, jti=name) for name in names]
            callers = [Caller(home.public, each) for each in tokens]
            answers = await asyncio.gather(
                *(
                    caller.post(CHAT, {**BODY, "user": f"end-{n}"})
                    for n, caller in enumerate(callers)
                )
            )
            assert {each.status for each in answers} <= {200, 429}
            assert any(each.status == 200 for each in answers)
            found = series(home)
            if round_ == 0:
                before = found
        assert found == before
        assert not any("somebody" in line or "end-" in line for line in found)

    lived(tmp_path, story)


def test_a_series_is_looked_up_once_and_is_the_metrics_own() -> None:
    registry = CollectorRegistry()
    counter = Counter("x", "X.", ("model",), registry=registry)
    labelled = Labelled(counter)
    labelled.labels("a").inc()
    labelled.labels("a").inc()
    counter.labels("a").inc()
    labelled.labels("b").inc()
    assert labelled.labels("a") is counter.labels("a")
    assert registry.get_sample_value("x_total", {"model": "a"}) == 3
    assert registry.get_sample_value("x_total", {"model": "b"}) == 1


def samples(home: Inhouse, name: str) -> dict[str, float]:
    """By their labels without the model's."""
    found = {}
    for line in home.house.metrics.exposition().decode().splitlines():
        named, _, value = line.rpartition(" ")
        if named.partition("{")[0] == name:
            labels = named.partition("{")[2].rstrip("}").split(",")
            found[",".join(each for each in labels if not each.startswith("model_name"))] = float(
                value
            )
    return found


def test_counts_are_exact_under_both_names(tmp_path: Path) -> None:
    """API.md §2 case 74, §5: what a board and Kubernetes' gateway for inference look for."""

    async def story(home: Inhouse) -> None:
        alice = home.caller()
        asked = [{**BODY, "max_tokens": 3, "ignore_eos": True, "n": n} for n in (1, 2)]
        usages = [(await alice.post(CHAT, body)).json()["usage"] for body in asked]
        await alice.post(CHAT, {**BODY, "max_tokens": 0})
        one, two = (usage["prompt_tokens"] for usage in usages)
        prompt = one + two
        for prefix, engine in (("lockgate_", ""), ("vllm:", 'engine="0"')):
            for name, expected in {
                "request_success_total": 2,
                "prompt_tokens_total": one + 2 * two,  # the echo reads it for each choice
                "generation_tokens_total": 9,
                "prefix_cache_queries_total": prompt,
                "prefix_cache_hits_total": 0,
                "request_prompt_tokens_count": 2,
                "request_prompt_tokens_sum": prompt,
                "request_generation_tokens_sum": 9,
                "request_max_num_generation_tokens_sum": 6,
                "request_params_max_tokens_sum": 6,
                "request_params_n_sum": 3,
                "inter_token_latency_seconds_count": 6,  # three answers of three tokens
                "iteration_tokens_total_count": 3 + 9,  # the echo's steps
                "iteration_tokens_total_sum": one + 2 * two + 9,
                "request_inference_time_seconds_count": 2,
                "time_to_first_token_seconds_count": 2,
                "e2e_request_latency_seconds_count": 2,
                "num_requests_running": 0,
                "num_requests_waiting": 0,
                "kv_cache_usage_perc": 0,
                "num_preemptions_total": 0,
            }.items():
                found = samples(home, prefix + name)
                assert sum(found.values()) == expected, prefix + name
                assert all(engine in labels for labels in found), prefix + name
        steps = samples(home, "vllm:iteration_tokens_total_bucket")
        assert [steps[f'engine="0",le="{le}"'] for le in ("1.0", "16384.0", "+Inf")] == [9, 12, 12]
        assert 'engine="0",le="0.005"' in samples(home, "vllm:inter_token_latency_seconds_bucket")
        assert samples(home, "vllm:num_requests_waiting_by_reason") == {
            'engine="0",reason="capacity"': 0
        }
        assert samples(home, "vllm:cache_config_info") == {
            'block_size="16",engine="0",num_gpu_blocks="1024"': 1
        }

    lived(tmp_path, story)


def test_retries_are_counted_by_the_clients_word_in_ten_series(tmp_path: Path) -> None:
    async def story(home: Inhouse) -> None:
        alice = home.caller()
        for said in ("0", "1", "1", "10", "11", "-1", "01", "9" * 400, "alice"):
            again = alice.with_headers(**{"x-stainless-retry-count": said})
            assert (await again.post(CHAT, BODY)).status == 200
        counted = samples(home, "lockgate_retried_requests_total")
        assert counted == {'retries="1"': 2, 'retries="10"': 1}

    lived(tmp_path, story)
