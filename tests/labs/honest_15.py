"""Right answers to lab 15, written otherwise than the worked ones: the checks must give each all of its points."""

# ruff: noqa: F821  (they run where the lab's names are defined)

from __future__ import annotations


def card_bytes_token_by_token(plan, offer):
    """Whole numbers of NumPy, and a print that was left."""
    import numpy as np

    layers = np.int64(MODEL["layers"])
    tokens = plan["micro_batch"] * MODEL["sequence"]
    kept = np.full(layers, MODEL["input_bytes"], dtype=np.float64)
    kept[: layers if plan["checkpointing"] == "none" else 1] += MODEL["inside_bytes"]
    held = tokens * (kept.sum() + MODEL["logits_bytes"])
    if plan["method"] != "full":
        return held + MODEL["base_bytes"][plan["method"]] + 16 * MODEL["adapter_parameters"]
    for each in (2, 2, 4, 4, 4):
        held += each * MODEL["parameters"] / plan["cards"]
    print("held", held)
    return held if plan["cards"] == 1 else held + 4 * MODEL["layer_parameters"]


def train_hours_step_by_step(plan, offer, tokens):
    """Seconds of one pass, times the passes."""
    a_pass_tokens = plan["micro_batch"] * MODEL["sequence"]
    flops = 6 if plan["method"] == "full" else 4
    flops += 2 * (plan["checkpointing"] != "none")
    computing = flops * MODEL["parameters"] * a_pass_tokens / offer["flops_per_s"]
    computing *= 5 / 4 if plan["method"] == "qlora" else 1
    sent = 0
    if plan["method"] == "full":
        sent = 6 * MODEL["parameters"] * (1 - 1 / plan["cards"]) / offer["link_bytes_per_s"]
    return tokens / a_pass_tokens / plan["cards"] * (computing + sent) / 60 / 60


def fine_tune_plan_sorted(offers, goal):
    """Lists everything, sorts by dollars, and takes the first; the cards in ascending order."""
    found = []
    for offer in range(len(offers)):
        one = offers[offer]
        for exponent in range(4):
            for micro in (16, 8, 4, 2, 1):
                if 2**exponent > one["most"]:
                    continue
                for method in goal["methods"]:
                    for checkpointing in ("full", "none"):
                        passes = 64 // (2**exponent * micro)
                        if not passes:
                            continue
                        plan = {
                            "offer": offer,
                            "cards": 2**exponent,
                            "method": method,
                            "checkpointing": checkpointing,
                            "micro_batch": micro,
                            "accumulation": float(passes),
                        }
                        hours = train_hours(plan, one, goal["tokens"])
                        cost = hours * plan["cards"] * one["per_hour"]
                        if card_bytes(plan, one) / 2**30 < one["memory_gib"] * 0.94 and hours < goal["hours"]:
                            found.append((cost, len(found), plan))
    found = sorted(one for one in found if one[0] < goal["dollars"])
    return found[0][2] if found else None


def fine_tune_plan_in_a_table(offers, goal):
    """A NumPy table of numbers, whose offers are 0.0 and 1.0; what the plan costs stands in it."""
    import numpy as np

    rows = []
    for at, offer in enumerate(offers):
        for cards, micro, how, policy in product((1, 2, 4, 8), (1, 2, 4, 8, 16), goal["methods"], ("none", "full")):
            plan = {"cards": cards, "micro_batch": micro, "method": how, "checkpointing": policy}
            hours = train_hours(plan, offer, goal["tokens"])
            if cards * micro > 64 or cards > offer["most"] or hours > goal["hours"]:
                continue
            if card_bytes(plan, offer) <= 0.94 * offer["memory_gib"] * 2**30:
                number = goal["methods"].index(how)
                rows.append([hours * cards * offer["per_hour"], at, cards, micro, number, policy == "full"])
    if not rows or min(rows)[0] > goal["dollars"]:
        return None
    dollars, offer, cards, micro, number, full = np.array(min(rows))
    names = {"method": goal["methods"][int(number)], "checkpointing": "full" if full else "none"}
    found = {"offer": offer, "cards": cards, "micro_batch": micro, "accumulation": 64 / cards / micro}
    return found | names | {"dollars": dollars}


def users_by_memory_one_by_one(layout, offer, context):
    """Adds users until the memory is full."""
    bits, users = SERVICE["bits"], 0
    left = layout["tensor"] * (offer["memory_gib"] * 0.92 * 1024**3 - SERVICE["work_bytes"])
    left -= SERVICE["parameters"] * bits[layout["weights"]] / 8
    a_user = math.ceil(context / 16) * 16 * SERVICE["kv_values"] * bits[layout["kv"]] / 8
    while left >= a_user:
        left -= a_user
        users += 1
    return users


def users_by_time_in_numpy(layout, offer, context, itl_s):
    """The seconds of every number of users at once."""
    import numpy as np

    users = np.arange(1, 60_000)
    bits = SERVICE["bits"]
    read = SERVICE["parameters"] * bits[layout["weights"]] / 8
    read = read + users * (context * SERVICE["kv_values"] * bits[layout["kv"]] / 8)
    seconds = read / (layout["tensor"] * offer["bytes_per_s"])
    if layout["tensor"] > 1:
        seconds = seconds + SERVICE["allreduces"] * offer["allreduce_s"]
    return (seconds <= itl_s).sum()


def service_plan_replica_by_replica(offers, goal):
    """Tries every number of replicas, with NumPy's numbers in the plan."""
    import numpy as np

    best = None
    for at, offer in enumerate(offers):
        for tensor in (8, 4, 2, 1):
            for weights in goal["weights"]:
                for kv in goal["kv"]:
                    layout = {"kv": kv, "weights": weights, "tensor": np.int64(tensor)}
                    room = users_by_memory(layout, offer, goal["context"])
                    quick = users_by_time(layout, offer, goal["context"], goal["itl_s"])
                    for replicas in range(1, offer["most"] // tensor + 1):
                        users = math.ceil(goal["users"] / replicas)
                        cost = replicas * tensor * offer["per_hour"]
                        if users <= room and users <= quick and (best is None or cost < best[0]):
                            best = cost, layout | {"offer": np.int64(at), "replicas": replicas}
    return None if best is None else best[1]


def service_plan_with_its_price(offers, goal):
    """The fewest bits of each kind, since they win in memory and in time; the price stands in the plan."""
    least = {kind: min(goal[kind], key=SERVICE["bits"].get) for kind in ("weights", "kv")}
    found = {}
    for at, offer in enumerate(offers):
        for tensor in (1, 2, 4, 8):
            layout = least | {"tensor": tensor}
            users = users_by_memory(layout, offer, goal["context"])
            users = min(users, users_by_time(layout, offer, goal["context"], goal["itl_s"]))
            cards = math.ceil(goal["users"] / users) * tensor if users else math.inf
            if cards <= offer["most"]:
                price = cards * offer["per_hour"]
                found[price] = layout | {"offer": float(at), "replicas": cards / tensor, "per_hour": price}
    return found[min(found)] if found else None


def cards_in_letter_by_letter(text):
    """Reads each line with a small machine of states, and prints how many it saw."""
    cards, lines = {}, 0
    for line in text.split("\n"):
        if not line or line.startswith("#"):
            continue
        lines += 1
        metric, at = line[: line.index("{")], line.index("{") + 1
        labels = {}
        while line[at] != "}":
            if line[at] == ",":
                at += 1
                continue
            equal = line.index("=", at)
            key, at, value = line[at:equal], equal + 2, ""
            while line[at] != '"':
                if line[at] == "\\":
                    at += 1
                    value += {"n": "\n"}.get(line[at], line[at])
                else:
                    value += line[at]
                at += 1
            labels[key] = value
            at += 1
        number = float(line[at + 1 :].split()[0])
        cards.setdefault(labels["gpu"], {})[metric] = number
        if metric == "gpu_up":
            cards[labels["gpu"]]["name"] = labels["name"]
    print(lines, "lines")
    out = {}
    for gpu, one in cards.items():
        numbers = [one.get("gpu_up", 0), one.get("gpu_memory_used_bytes"), one.get("gpu_memory_total_bytes")]
        if numbers[0] == 1 and None not in numbers and all(math.isfinite(number) for number in numbers):
            out[gpu] = (one["name"], *numbers[1:])
    return out


def time_to_full_by_bootstrap(samples, total):
    """NumPy: the last place where medians differ, Theil-Sen, and an interval from samples drawn again."""
    import numpy as np

    data = np.array(samples, dtype=float)
    for at in range(len(data) - 5, 4, -1):
        if abs(np.median(data[at : at + 5, 1]) - np.median(data[at - 5 : at, 1])) >= 0.08 * total:
            data = data[at:]
            break

    def line(rows):
        first, second = np.triu_indices(len(rows), 1)
        time = rows[second, 0] - rows[first, 0]
        slope = np.median((rows[second, 1] - rows[first, 1])[time > 0] / time[time > 0])
        return slope, np.median(rows[:, 1] - slope * (rows[:, 0] - data[-1, 0]))

    slope, level = line(data)
    off = data[:, 1] - slope * (data[:, 0] - data[-1, 0])
    if slope * (data[-1, 0] - data[0, 0]) <= 2 * (np.quantile(off, 0.9) - np.quantile(off, 0.1)):
        return None
    rng = np.random.default_rng(15)
    again = [line(data[np.sort(rng.integers(0, len(data), len(data)))]) for _ in range(200)]
    seconds = np.array([(total - low) / rate for rate, low in again])
    expected = (total - level) / slope
    low, high = np.quantile(seconds, [0.01, 0.99])
    return [min(low, expected), expected, max(high, expected)]


def time_to_full_by_consensus(samples, total):
    """The line through two samples with the most others near it, tuples, and an interval from its inliers."""
    import random

    rng, now = random.Random(15), samples[-1][0]
    for at in range(len(samples) - 5, 4, -1):
        before, after = (statistics.median(value for _, value in samples[at + k : at + k + 5]) for k in (-5, 0))
        if abs(after - before) > 0.08 * total:
            samples = samples[at:]
            break

    def near(slope, level):
        return [(time, used) for time, used in samples if abs(level + slope * (time - now) - used) < 0.02 * total]

    best = []
    for _ in range(400):
        one, other = rng.sample(samples, 2)
        slope = (other[1] - one[1]) / (other[0] - one[0])
        best = max(best, near(slope, one[1] + slope * (now - one[0])), key=len)
    times, used = zip(*best, strict=True)
    mean_time, mean = statistics.fmean(times), statistics.fmean(used)
    square = sum((time - mean_time) ** 2 for time in times)
    slope = sum((time - mean_time) * (value - mean) for time, value in best) / square
    level = mean + slope * (now - mean_time)
    noise = statistics.pstdev(value - level - slope * (time - now) for time, value in best)
    if slope * (now - samples[0][0]) < 6 * noise:
        return None
    off = 3 * noise / square**0.5
    return tuple((total - level) / rate for rate in (slope + off, slope, slope - off))


def cards_in_fractions(text):
    """Fractions, and cards that generators make."""
    from decimal import Decimal
    from fractions import Fraction

    label = re.compile(r'(\w+)="((?:\\.|[^"\\])*)"')
    lines = {}
    for line in filter(lambda one: one and one[0] != "#", text.split("\n")):
        spans = [*label.finditer(line)]
        owned = {one[1]: re.sub(r"\\(.)", lambda two: "\n" if two[1] == "n" else two[1], one[2]) for one in spans}
        number = Decimal(line[spans[-1].end() :].lstrip(",} ").split()[0])
        lines[owned["gpu"], line[: line.index("{")]] = number, owned
    found = {}
    for (gpu, metric), (number, owned) in lines.items():
        sizes = [lines.get((gpu, f"gpu_memory_{kind}_bytes"), [Decimal("nan")])[0] for kind in ("used", "total")]
        if metric == "gpu_up" and number and all(size.is_finite() for size in sizes):
            found[gpu] = (one for one in (owned["name"], *map(Fraction, sizes)))
    return found


def deepspeed_json_by_hand(plan):
    """A text with lines and the other keys that many files have."""
    stage = 0 if plan["method"] != "full" or plan["cards"] < 2 else 3
    batch = plan["cards"] * plan["micro_batch"] * plan["accumulation"]
    return f"""{{
      "zero_optimization": {{"stage": {stage}, "overlap_comm": true}},
      "bf16": {{"enabled": true}}, "fp16": {{"enabled": false}},
      "gradient_accumulation_steps": {plan["accumulation"]},
      "train_micro_batch_size_per_gpu": {plan["micro_batch"]},
      "train_batch_size": {batch}
    }}
    """


def deepspeed_json_without_offload(plan):
    """Says in so many words that nothing is moved to the host."""
    divided = plan["cards"] > 1 and plan["method"] == "full"
    found = {"train_batch_size": 64, "gradient_accumulation_steps": plan["accumulation"], "gradient_clipping": 1.0}
    found |= {"train_micro_batch_size_per_gpu": plan["micro_batch"], "bf16": {"enabled": True}}
    found["zero_optimization"] = {"stage": 3 * divided, "offload_optimizer": {"device": "none"}, "offload_param": None}
    return json.dumps(found, indent=4)


def vllm_args_by_other_names(plan, goal):
    """vLLM's short names, underscores, and options that say nothing here."""
    yield from ("--port", 8000, "--dtype=bfloat16", "-tp", plan["tensor"], f"--max_model_len={goal['context']}")
    yield from ("--max_num_seqs", -(-goal["users"] // plan["replicas"]), "--gpu_memory_utilization", 0.95 - 0.03)
    if plan["weights"] != "bf16":
        yield from ("-q", {"fp8": "fp8", "int4": "awq"}[plan["weights"]])
    yield from ("--kv_cache_dtype", {"fp8": "fp8", "bf16": "auto"}[plan["kv"]])


def vllm_args_in_pairs(plan, goal):
    """Flag and value apart; numbers that are no texts; FP8 by its short name."""
    import numpy as np

    users = math.ceil(goal["users"] / plan["replicas"])
    print("users", users)
    found = ["--max-num-seqs", np.int64(users), "--tensor-parallel-size", plan["tensor"]]
    found += ["--max-model-len", str(goal["context"]), "--gpu-memory-utilization", "0.920"]
    if plan["kv"] == "fp8":
        found += ["--kv-cache-dtype", "fp8"]
    if plan["weights"] != "bf16":
        found += ["--quantization", "awq" if plan["weights"] == "int4" else "fp8"]
    return tuple(found)


def judged_by_the_lowest(step, budget_bytes):
    """The lowest of forty values early on, and of forty later."""
    alive = []
    with Meter() as meter:
        for _ in range(300):
            step()
            alive.append(meter.live_bytes)
        most = meter.peak_bytes
    added = (min(alive[-42:]) - min(alive[20:62])) / 238
    if added > 0:
        return "leak", added
    return ("peak", most - budget_bytes) if most > budget_bytes else ("ok", 0)


def judged_by_a_line(step, budget_bytes):
    """The slope of a straight line through what is alive after every step from the fifteenth on."""
    import numpy as np

    with Meter() as meter:
        alive = np.array([(step(), meter.live_bytes)[1] for _ in range(434)][14:], dtype=float)
        over = meter.peak_bytes - budget_bytes
    slope = np.polyfit(np.arange(len(alive)), alive, 1)[0]
    if slope * len(alive) > 0.2 * np.ptp(alive) + 1:
        return ["leak", np.int64(round(slope))]
    return ["peak", over] if over > 0 else ["ok", 0]
