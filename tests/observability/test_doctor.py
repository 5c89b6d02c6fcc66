"""Each class of trouble is found in what shows it, and in nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.doctor.checks import CHECKS
from appliance.doctor.evidence import Evidence, Folder, Gpu, Limits, Machine, Probe
from appliance.doctor.findings import Severity
from appliance.doctor.gather import ask_for_stream
from appliance.doctor.http import Answer, BoxClient
from appliance.doctor.machine import read_gpus
from appliance.doctor.report import as_json, as_text, examine, not_examined, worst
from appliance.doctor.samples import Samples
from appliance.supervisor.rendering import render_box
from tests.box.proxy import STOCK_CONFIG, make_settings, short_dir

GIB = 1024**3
READY = {"status": "ready", "models": [{"model": "m", "is_ready": True, "phase": "ready", "percent": 100.0}]}
MACHINE = Machine(
    num_cores=4,
    load=1.0,
    stolen_share=0.0,
    throttled_share=0.0,
    memory_limit_bytes=8 * GIB,
    memory_free_bytes=4 * GIB,
    num_oom_kills=0,
    max_files=65536,
    folders=(Folder("/run", GIB, 2 * GIB),),
    shared_memory=Folder("/dev/shm", GIB, GIB),
)
STREAM = Probe(tuple(0.1 * i for i in range(1, 25)), 24)


def histogram(name: str, buckets: dict[str, float], total_s: float) -> str:
    """A histogram from cumulative counts."""
    count = max(buckets.values())
    lines = [f'{name}_bucket{{le="{bound}"}} {number}' for bound, number in (buckets | {"+Inf": count}).items()]
    return "\n".join([f"# TYPE {name} histogram", *lines, f"{name}_sum {total_s}", f"{name}_count {count}", ""])


HEALTHY = "\n".join(
    [
        histogram("vllm:time_to_first_token_seconds", {"0.1": 95, "0.5": 100, "2.5": 100, "10.0": 100}, 8),
        histogram("vllm:inter_token_latency_seconds", {"0.025": 900, "0.1": 995, "1.0": 1000}, 20),
        histogram("vllm:iteration_tokens_total", {"8.0": 900, "512.0": 1000}, 2000),
        histogram("vllm:request_queue_time_seconds", {"0.3": 100}, 1),
        histogram("vllm:request_prefill_time_seconds", {"0.3": 100}, 5),
        histogram("vllm:e2e_request_latency_seconds", {"1.0": 100}, 60),
        histogram("vllm:request_params_max_tokens", {"100.0": 100}, 10000),
        histogram("vllm:request_generation_tokens", {"100.0": 100}, 5000),
        histogram("http_request_duration_seconds", {"1.0": 99, "60.0": 100}, 60),
        "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 4",
        "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 0",
        "# TYPE vllm:num_requests_waiting_by_reason gauge",
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 0',
        "# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc 0.3",
        "# TYPE vllm:num_preemptions counter\nvllm:num_preemptions_total 0",
        "# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total 5000",
        "# TYPE vllm:request_success counter",
        *(f'vllm:request_success_total{{finished_reason="{r}"}} {n}' for r, n in {"stop": 90, "length": 10}.items()),
        'vllm:request_success_total{finished_reason="abort"} 0',
        "# TYPE breadbox:restarts counter",
        *(f'breadbox:restarts_total{{program="{program}"}} 0' for program in ("engine-0", "api")),
        "# TYPE breadbox:resumed_requests counter\nbreadbox:resumed_requests_total 0",
        "# TYPE breadbox:open_fds gauge",
        'breadbox:open_fds{program="nginx"} 20',
        "# TYPE breadbox:resident_memory_bytes gauge",
        'breadbox:resident_memory_bytes{program="engine-0"} 1000000000',
        "",
    ]
)


def evidence(*changes: tuple[str, str], **facts: Any) -> Evidence:
    """A healthy, busy box whose metrics differ in some lines between the scrapes (old text, new text)."""
    after = HEALTHY.replace("vllm:generation_tokens_total 5000", "vllm:generation_tokens_total 6000")
    after = after.replace("vllm:iteration_tokens_total_count 1000", "vllm:iteration_tokens_total_count 1100")
    for old, new in changes:
        assert old in after, old
        after = after.replace(old, new)
    base = Evidence(
        url="http://box",
        readiness=READY,
        before=Samples.parse(HEALTHY),
        after=Samples.parse(after),
        seconds=10.0,
        probe=STREAM,
        machine=MACHINE,
        log="all quiet",
        clock_skew_s=0.3,
    )
    return replace(base, **facts)


def not_ready(**model: Any) -> dict[str, Any]:
    return {"status": "not ready", "models": [{"model": "m", "phase": "loading weights", "percent": 40.0, **model}]}


SLOW_TTFT = (
    histogram("vllm:time_to_first_token_seconds", {"0.1": 95, "0.5": 100, "2.5": 100, "10.0": 100}, 8),
    histogram("vllm:time_to_first_token_seconds", {"0.1": 50, "0.5": 60, "2.5": 80, "10.0": 100}, 300),
)
QUEUE = ("vllm:request_queue_time_seconds_sum 1", "vllm:request_queue_time_seconds_sum 400")
FULL = ("vllm:kv_cache_usage_perc 0.3", "vllm:kv_cache_usage_perc 0.97")
SPIKES = (
    histogram("vllm:inter_token_latency_seconds", {"0.025": 900, "0.1": 995, "1.0": 1000}, 20),
    histogram("vllm:inter_token_latency_seconds", {"0.025": 900, "0.1": 950, "1.0": 1000}, 60),
)
PREEMPTED = ("vllm:num_preemptions_total 0", "vllm:num_preemptions_total 50")
CRASHED = ('restarts_total{program="engine-0"} 0', 'restarts_total{program="engine-0"} 1')
ABORTED = ('finished_reason="abort"} 0', 'finished_reason="abort"} 40')
LENGTH = ('finished_reason="length"} 10', 'finished_reason="length"} 300')
ADAPTERS = (
    "# TYPE breadbox:open_fds gauge",
    "# TYPE vllm:lora_requests_info gauge\n"
    'vllm:lora_requests_info{max_lora="1",waiting_lora_adapters="",running_lora_adapters="a"} 100\n'
    'vllm:lora_requests_info{max_lora="1",waiting_lora_adapters="b,c",running_lora_adapters="a"} 200\n'
    "# TYPE breadbox:open_fds gauge",
)
CASES: dict[str, tuple[Evidence, str, Severity, str]] = {
    "unreachable": (Evidence(error="connection refused"), "unreachable", Severity.CRITICAL, "--url"),
    "loading": (evidence(readiness=not_ready()), "not-ready", Severity.WARNING, "wait"),
    "oom at start, told by the engine": (
        *(evidence(readiness=not_ready(error="the KV cache holds 60 tokens: set kv_cache_memory_bytes to 9")),),
        *("oom-at-start", Severity.CRITICAL, "--kv-cache-memory"),
    ),
    "oom run time, told by the kernel": (
        *(evidence(machine=replace(MACHINE, num_oom_kills=2)), "oom-at-run-time", Severity.CRITICAL, "--max-num-seqs"),
    ),
    "oom run time, told by the log": (
        *(evidence(log="x\ntorch.OutOfMemoryError: CUDA out of memory\ny"), "oom-at-run-time"),
        *(Severity.CRITICAL, "--kv-cache-memory"),
    ),
    "oom run time, soon": (
        *(evidence(machine=replace(MACHINE, memory_free_bytes=GIB // 10)), "oom-at-run-time"),
        *(Severity.WARNING, "--kv-cache-memory"),
    ),
    "ttft, prompts": (evidence(SLOW_TTFT), "slow-first-token", Severity.WARNING, "--max-num-batched-tokens"),
    "ttft, queue": (evidence(SLOW_TTFT, QUEUE), "slow-first-token", Severity.WARNING, "--max-num-seqs"),
    "ttft, memory": (evidence(SLOW_TTFT, QUEUE, FULL), "slow-first-token", Severity.WARNING, "--kv-cache-memory"),
    "spikes, prefill": (evidence(SPIKES), "token-spikes", Severity.WARNING, "--long-prefill-token-threshold"),
    "throughput, cpu limit": (
        *(evidence(machine=replace(MACHINE, throttled_share=0.4)), "low-throughput", Severity.WARNING, "CPU limit"),
    ),
    "throughput, hypervisor": (
        *(evidence(machine=replace(MACHINE, stolen_share=0.3)), "low-throughput", Severity.WARNING, "overbooked"),
    ),
    "throughput, crowd": (
        *(evidence(machine=replace(MACHINE, load=20.0)), "low-throughput", Severity.WARNING, "--num-threads"),
    ),
    "throughput, gpu": (
        *(evidence(gpus=(Gpu("H200", 1, 2, True),)), "low-throughput", Severity.WARNING, "nvidia-smi"),
    ),
    "throughput, thrashing": (evidence(PREEMPTED), "low-throughput", Severity.WARNING, "--max-num-seqs"),
    "throughput, expectation": (
        *(evidence(limits=Limits(tokens_per_s=500)), "low-throughput", Severity.WARNING, "breadbox bench"),
    ),
    "crash, once": (
        *(evidence(CRASHED, before=Samples.parse(HEALTHY.replace(*CRASHED))), "crash", Severity.WARNING, "log"),
    ),
    "crash, now": (evidence(CRASHED), "crash", Severity.CRITICAL, "log"),
    "adapters": (evidence(ADAPTERS), "slow-adapter-switch", Severity.WARNING, "--max-loras"),
    "stutter": (evidence(probe=Probe((2.4,), 24, {"via": "1.1 x"})), "stream-stutter", Severity.WARNING, "buffering"),
    "stutter, late": (
        *(evidence(probe=Probe((4.0, *(4.1 + i / 20 for i in range(12))), 24)), "stream-stutter"),
        *(Severity.WARNING, "buffering"),
    ),
    "cut, clients": (evidence(ABORTED), "cut-generations", Severity.WARNING, "timeouts"),
    "cut, context": (evidence(LENGTH), "cut-generations", Severity.WARNING, "--max-model-len"),
    "cut, connection": (
        *(evidence(probe=replace(STREAM, is_complete=False)), "cut-generations", Severity.WARNING, "load balancer"),
    ),
    "disk": (
        *(evidence(machine=replace(MACHINE, folders=(Folder("/run", 10 * 1024**2, GIB),))), "disk"),
        *(Severity.WARNING, "--run-dir"),
    ),
    "disk, full": (
        *(evidence(machine=replace(MACHINE, folders=(Folder("/run", 1000, GIB),))), "disk", Severity.CRITICAL, "room"),
    ),
    "disk, inodes": (
        *(evidence(machine=replace(MACHINE, folders=(Folder("/run", GIB, GIB, 0.01),))), "disk"),
        *(Severity.WARNING, "room"),
    ),
    "files, limit": (
        *(evidence(machine=replace(MACHINE, max_files=1024)), "file-descriptors", Severity.WARNING, "ulimit"),
    ),
    "files, used": (
        *(evidence(('program="nginx"} 20', 'program="nginx"} 65000')), "file-descriptors"),
        *(Severity.CRITICAL, "ulimit"),
    ),
    "shm": (
        *(evidence(machine=replace(MACHINE, shared_memory=Folder("/dev/shm", 1024**2, 64 * 1024**2))), "shared-memory"),
        *(Severity.WARNING, "--shm-size"),
    ),
    "clock": (evidence(clock_skew_s=-90.0), "clock", Severity.WARNING, "NTP"),
}


def test_a_healthy_box_has_nothing() -> None:
    healthy = evidence()
    assert examine(healthy) == []
    assert worst([]) == Severity.OK
    assert as_text(healthy, []).endswith(f"{len(CHECKS)} checks, all is well")
    assert not_examined(healthy) == []


@pytest.mark.parametrize("name", CASES)
def test_a_trouble_is_named_with_evidence_and_a_knob(name: str) -> None:
    seen, trouble, severity, knob = CASES[name]
    (finding,) = examine(seen)
    assert (finding.trouble, finding.severity) == (trouble, severity)
    assert finding.evidence
    assert knob in finding.advice
    assert trouble in as_text(seen, [finding])


def test_oom_at_start_is_also_told_by_kills_and_restarts() -> None:
    seen = evidence(CRASHED, readiness=not_ready(), machine=replace(MACHINE, num_oom_kills=1))
    assert {finding.trouble for finding in examine(seen)} == {"oom-at-start", "not-ready", "crash"}


def test_a_small_batch_before_a_queue_is_low_throughput() -> None:
    changes = [("vllm:num_requests_waiting 0", "vllm:num_requests_waiting 30")]
    changes += [('waiting_by_reason{reason="capacity"} 0', 'waiting_by_reason{reason="capacity"} 30')]
    seen = evidence(*changes)
    seen = replace(seen, before=seen.before.__class__(seen.after.values))
    seen = replace(seen, before=Samples({**seen.before.values, **_one("vllm:iteration_tokens_total_count", 900)}))
    (finding,) = examine(seen)
    assert finding.trouble == "low-throughput"
    assert "--max-num-seqs" in finding.advice


def _one(name: str, value: float) -> dict[Any, float]:
    return {(name, frozenset()): value}


def test_preemptions_are_the_cause_of_spikes_where_there_are_any() -> None:
    troubles = {finding.trouble: finding for finding in examine(evidence(SPIKES, PREEMPTED))}
    assert "--max-num-seqs" in troubles["token-spikes"].advice


def test_the_worst_comes_first_and_is_the_exit_status() -> None:
    findings = examine(evidence(SLOW_TTFT, CRASHED))
    assert [finding.severity for finding in findings] == [Severity.CRITICAL, Severity.WARNING]
    assert int(worst(findings)) == 2
    report = json.loads(as_json(evidence(), findings))
    assert report["severity"] == "critical"
    assert {finding["trouble"] for finding in report["findings"]} == {"crash", "slow-first-token"}


def test_our_own_proxy_is_in_order_and_a_stock_one_is_not() -> None:
    with short_dir() as folder:
        render_box(make_settings(folder), "secret")
        own = (folder / "nginx.conf").read_text()
    assert examine(evidence(proxy_configs={"own": own})) == []
    stock = STOCK_CONFIG.format(folder="/x", user="", port=1, upstream_port=2)
    troubles = {finding.trouble for finding in examine(evidence(proxy_configs={"stock": stock}))}
    assert troubles == {"stream-stutter", "cut-generations"}


def test_percentiles_and_growth() -> None:
    samples = Samples.parse(histogram("h", {"1.0": 50, "2.0": 90, "4.0": 100}, 150))
    assert [samples.quantile("h", q) for q in (0.5, 0.9, 0.91, 1.0)] == [1.0, 2.0, 4.0, 4.0]
    assert samples.mean("h") == 1.5
    assert Samples().quantile("h", 0.5) == 0
    later = Samples.parse(histogram("h", {"1.0": 51, "2.0": 93, "4.0": 110}, 200))
    assert later.since(samples).total("h_count") == 10
    assert (
        Samples.parse("# TYPE c counter\nc_total 3")
        .since(Samples.parse("# TYPE c counter\nc_total 5"))
        .total("c_total")
        == 3
    )


class FastBox(BoxClient):
    """Makes a thousand tokens a second."""

    def __init__(self) -> None:
        super().__init__("http://box", None)
        self.asked: list[int] = []

    def get(self, path: str) -> Answer:
        return Answer(200, json.dumps({"data": [{"id": "m", "max_model_len": 1000}]}), None)

    def probe(self, model: str, num_tokens: int) -> Probe:
        self.asked.append(num_tokens)
        return Probe((num_tokens / 1000,), num_tokens)


def test_a_fast_box_is_asked_for_a_longer_stream() -> None:
    box = FastBox()
    probe = ask_for_stream(box)
    assert box.asked == [160, 500]
    assert "stream-stutter" in {finding.trouble for finding in examine(evidence(probe=probe))}


def test_gpus_are_read_from_nvidia_smi() -> None:
    text = "NVIDIA H200, 1000, 143771, Not Active\nNVIDIA H200, 5, 143771, Active\nno devices"
    assert [(gpu.used_bytes, gpu.is_throttled) for gpu in read_gpus(text)] == [
        (1000 * 1024**2, False),
        (5 * 1024**2, True),
    ]


def test_every_check_is_provoked() -> None:
    found = {case[1] for case in CASES.values()}
    assert len(list(Path(CHECKS["clock"].__code__.co_filename).parent.glob("[a-z]*.py"))) == len(CHECKS)
    assert found >= {
        *("oom-at-start", "oom-at-run-time", "slow-first-token", "token-spikes", "low-throughput", "crash"),
        *(
            "slow-adapter-switch",
            "stream-stutter",
            "cut-generations",
            "disk",
            "file-descriptors",
            "shared-memory",
            "clock",
        ),
    }
