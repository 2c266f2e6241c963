"""Known-wrong answers to lab 15. Each must fail its check, with the sentence that its learner then reads.

A function with itself for the default `right` changes one thing in the worked answer, which the kernel holds at that
moment.
"""

# ruff: noqa: F811, F821  (they are put into the lab's cells, where these names are defined)

from helpers.course.mutants import mutant


@mutant("card-bytes", feedback="the inside of the layers")
def card_bytes(plan, offer, right=card_bytes):
    """Full checkpointing keeps the input of every layer, and forgets the layer that is computed again."""
    forgotten = plan["micro_batch"] * MODEL["sequence"] * MODEL["inside_bytes"]
    return right(plan, offer) - forgotten * (plan["checkpointing"] == "full")


@mutant("card-bytes", feedback="the frozen base 14.96")
def card_bytes(plan, offer, right=card_bytes):
    """The frozen base is divided by the cards, as ZeRO-3 would."""
    base = 0 if plan["method"] == "full" else MODEL["base_bytes"][plan["method"]]
    return right(plan, offer) - base + base / plan["cards"]


@mutant("card-bytes", feedback="a gathered layer 0.81")
def card_bytes(plan, offer, right=card_bytes):
    """ZeRO-3 without the layer that it gathers."""
    gathered = 4 * MODEL["layer_parameters"] * (plan["cards"] > 1 and plan["method"] == "full")
    return right(plan, offer) - gathered


@mutant("card-bytes", feedback="GiB, you have")
def card_bytes(plan, offer):
    """Calls helpers, whose planner counts every tensor, and not with this lab's constants."""
    from helpers.catalog import model
    from helpers.catalog.train_setup import TrainSetup
    from helpers.memory import budget
    from helpers.memory.plan.training import adapter_of

    setup = TrainSetup(
        "llama-3.1-8b",
        sequence=4096,
        micro_batch=plan["micro_batch"],
        checkpointing=plan["checkpointing"],
        adapter=adapter_of(plan["method"], model("llama-3.1-8b")),
    )
    return budget.train(setup).peak.total


@mutant("train-hours", feedback="h of computing and")
def train_hours(plan, offer, tokens, right=train_hours):
    """Recomputing costs nothing."""
    return right(plan | {"checkpointing": "none"}, offer, tokens)


@mutant("train-hours", feedback="h on the link, you have")
def train_hours(plan, offer, tokens, right=train_hours):
    """The link costs nothing."""
    return right(plan, offer | {"link_bytes_per_s": float("inf")}, tokens)


@mutant("fine-tune-plan", feedback="the card has")
def fine_tune_plan(offers, goal, right=fine_tune_plan):
    """Plans for cards with twice the memory."""
    return right([offer | {"memory_gib": 2 * offer["memory_gib"]} for offer in offers], goal)


@mutant("fine-tune-plan", feedback="% less. Look at every offer")
def fine_tune_plan(offers, goal):
    """The first plan that keeps the limits, not the cheapest."""
    for number, offer in enumerate(offers):
        for cards, method, micro in product((1, 2, 4, 8), goal["methods"], (1, 2, 4, 8, 16)):
            plan = {"offer": number, "cards": cards, "method": method, "checkpointing": "full", "micro_batch": micro}
            plan["accumulation"] = 64 // cards // micro
            hours = train_hours(plan, offer, goal["tokens"])
            fits = card_bytes(plan, offer) <= 0.94 * 2**30 * offer["memory_gib"] and cards <= offer["most"]
            if (
                fits
                and plan["accumulation"]
                and hours <= goal["hours"]
                and hours * cards * offer["per_hour"] <= goal["dollars"]
            ):
                return plan
    return None


@mutant("fine-tune-plan", feedback="a whole number of passes")
def fine_tune_plan(offers, goal, right=fine_tune_plan):
    """Half a pass, which nobody can run, makes room for twice the micro-batch."""
    plan = right(offers, goal)
    return plan and plan | {"micro_batch": 2 * plan["micro_batch"], "accumulation": plan["accumulation"] / 2}


@mutant("fine-tune-plan", feedback="it has")
def fine_tune_plan(offers, goal, right=fine_tune_plan):
    """Forgets to accumulate."""
    plan = right(offers, goal)
    return plan and plan | {"accumulation": 1}


@mutant("fine-tune-plan", feedback=" h")
def fine_tune_plan(offers, goal, right=fine_tune_plan):
    """Does not look at the deadline."""
    return right(offers, goal | {"hours": 10**6})


@mutant("fine-tune-plan", feedback="keeps all limits, and yours is None")
def fine_tune_plan(offers, goal, right=fine_tune_plan):
    """Micro-batches of four at most."""
    plan = right(offers, goal)
    return plan if plan and plan["micro_batch"] <= 4 else None


@mutant("fine-tune-plan", feedback="% less. Look at every offer")
def fine_tune_plan(offers, goal, right=fine_tune_plan):
    """Keeps a tenth of the card, not six parts of a hundred."""
    return right([offer | {"memory_gib": offer["memory_gib"] * 0.9 / 0.94} for offer in offers], goal)


@mutant("users-by-memory", feedback="of all cards together")
def users_by_memory(layout, offer, context, right=users_by_memory):
    """Every card holds all weights."""
    size = SERVICE["parameters"] * SERVICE["bits"][layout["weights"]] / 8
    room = 0.92 * 2**30 * offer["memory_gib"] - SERVICE["work_bytes"] - size
    a_user = -(-context // 16) * 16 * SERVICE["kv_values"] * SERVICE["bits"][layout["kv"]] / 8
    return max(0, int(layout["tensor"] * room // a_user))


@mutant("users-by-memory", feedback="in blocks of 16 tokens")
def users_by_memory(layout, offer, context, right=users_by_memory):
    """Counts tokens, not blocks."""
    room = layout["tensor"] * (0.92 * 2**30 * offer["memory_gib"] - SERVICE["work_bytes"])
    room -= SERVICE["parameters"] * SERVICE["bits"][layout["weights"]] / 8
    return max(0, int(room // (context * SERVICE["kv_values"] * SERVICE["bits"][layout["kv"]] / 8)))


@mutant("users-by-time", feedback="a step with nobody takes")
def users_by_time(layout, offer, context, itl_s, right=users_by_time):
    """All-reduces take no time."""
    return right(layout, offer | {"allreduce_s": 0.0}, context, itl_s)


@mutant("service-plan", feedback="ms between tokens")
def service_plan(offers, goal, right=service_plan):
    """Looks at memory alone."""
    return right(offers, goal | {"itl_s": 10.0})


@mutant("service-plan", feedback="less: look at every offer")
def service_plan(offers, goal, right=service_plan):
    """Only the largest replica."""
    for number, offer in enumerate(offers):
        for weights, kv, tensor in product(goal["weights"], goal["kv"], (8, 4, 2, 1)):
            layout = {"weights": weights, "kv": kv, "tensor": tensor}
            most = min(
                users_by_memory(layout, offer, goal["context"]),
                users_by_time(layout, offer, goal["context"], goal["itl_s"]),
            )
            if most and -(-goal["users"] // most) * tensor <= offer["most"]:
                return {**layout, "offer": number, "replicas": -(-goal["users"] // most)}
    return None


@mutant("service-plan", feedback="a plan is a dict with")
def service_plan(offers, goal):
    """Calls helpers, and gives what their planner calls a plan."""
    from helpers.memory.plan import Cards, ServeGoal, plan_serving

    wanted = ServeGoal("llama-3-70b", users=goal["users"], context=goal["context"], latency_s=goal["itl_s"])
    plans = plan_serving(wanted, [Cards("h100", 16)]).plans
    return {"tensor": plans[0].layout.tensor, "replicas": plans[0].replicas} if plans else {}


@mutant("service-plan", feedback="tensor, weights, yours has")
def service_plan(offers, goal, right=service_plan):
    """A list of plans."""
    return [right(offers, goal)]


@mutant("service-plan", feedback="users, and room for")
def service_plan(offers, goal, right=service_plan):
    """One replica, whatever it can serve."""
    plan = right(offers, goal)
    return plan and plan | {"replicas": 1, "tensor": 1}


@mutant("service-plan", feedback="cards, offer")
def service_plan(offers, goal, right=service_plan):
    """Rents cards that are not there."""
    return right([offer | {"most": 32} for offer in offers], goal)


@mutant("service-plan", feedback="take as few replicas as serve everybody")
def service_plan(offers, goal):
    """One replica more than whole ones, even where nobody is left over."""
    plans = []
    for at, offer in enumerate(offers):
        for weights, kv, tensor in product(goal["weights"], goal["kv"], (1, 2, 4, 8)):
            one = {"weights": weights, "kv": kv, "tensor": tensor, "offer": at}
            room = users_by_memory(one, offer, goal["context"])
            most = min(room, users_by_time(one, offer, goal["context"], goal["itl_s"]))
            if most and (goal["users"] // most + 1) * tensor <= offer["most"]:
                plans.append(one | {"replicas": goal["users"] // most + 1})
    return min(plans, key=lambda one: one["replicas"] * one["tensor"] * offers[one["offer"]]["per_hour"], default=None)


@mutant("service-plan", feedback="look at every offer, pair of formats")
def service_plan(offers, goal, right=service_plan):
    """The last format of each list."""
    return right(offers, goal | {"weights": goal["weights"][-1:], "kv": goal["kv"][-1:]})


@mutant("users-by-memory", feedback="in blocks of 16 tokens")
def users_by_memory(layout, offer, context, right=users_by_memory):
    """A block more, even where the last one is full."""
    return right(layout, offer, context // 16 * 16 + 16)


@mutant("users-by-time", feedback="0 users, you have -")
def users_by_time(layout, offer, context, itl_s):
    """Fewer users than none."""
    waits = SERVICE["allreduces"] * offer["allreduce_s"] * (layout["tensor"] > 1)
    bits = SERVICE["bits"]
    readable = (itl_s - waits) * layout["tensor"] * offer["bytes_per_s"]
    readable -= SERVICE["parameters"] * bits[layout["weights"]] / 8
    return math.floor(readable / (context * SERVICE["kv_values"] * bits[layout["kv"]] / 8))


@mutant("cards-in", feedback="is not up, or a number of it is missing or not finite")
def cards_in(text, right=cards_in):
    """Takes a lost card for one that is there."""
    return right(re.sub(r"(gpu_up\{.*\}) 0", r"\1 1", text))


@mutant("cards-in", feedback="[name, used, total] is wanted, yours is {")
def cards_in(text, right=cards_in):
    """A dict of each card."""
    return {gpu: dict(zip(("name", "used", "total"), card, strict=True)) for gpu, card in right(text).items()}


@mutant("cards-in", feedback="its name is")
def cards_in(text, right=cards_in):
    """Leaves the escapes as they are."""
    return right(text.replace("\\", "\\\\").replace('\\\\"', '\\"'))


@mutant("cards-in", feedback="is there, with all three lines, and you leave it out")
def cards_in(text):
    """Splits labels at commas, and lines at the brace."""
    known = {}
    for line in text.splitlines():
        if line and line[0] != "#":
            metric, rest = line.split("{", 1)
            inner, value = rest.split("}", 1)
            labels = dict(pair.split("=", 1) for pair in inner.split(",") if "=" in pair)
            try:
                known.setdefault(labels.get("gpu", "").strip('"'), {})[metric] = (float(value.split()[0]), labels)
            except ValueError:
                continue
    cards = {}
    for gpu, one in known.items():
        if len(one) >= 5 and one["gpu_up"][0]:
            used, total = one["gpu_memory_used_bytes"][0], one["gpu_memory_total_bytes"][0]
            cards[gpu] = [one["gpu_up"][1].get("name", "").strip('"'), used, total]
    return cards


@mutant("cards-in", feedback="a function is called that knows the answer")
def cards_in(text):
    """Calls the parser of Prometheus' own client."""
    from prometheus_client.parser import text_string_to_metric_families

    known = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            known.setdefault(sample.labels["gpu"], {})[sample.name] = sample
    found = {}
    for gpu, one in known.items():
        lines = [one.get(name) for name in ("gpu_up", "gpu_memory_used_bytes", "gpu_memory_total_bytes")]
        if all(lines) and all(math.isfinite(line.value) for line in lines) and lines[0].value:
            found[gpu] = [lines[0].labels["name"], lines[1].value, lines[2].value]
    return found


@mutant("time-to-full", feedback="at most half as wide is right")
def time_to_full(samples, total, right=time_to_full):
    """The same share on both sides, whatever the noise."""
    found = right(samples, total)
    return found and [0.85 * found[1], found[1], 1.15 * found[1]]


@mutant("time-to-full", feedback="intervals do not follow the noise")
def time_to_full(samples, total, right=time_to_full):
    """Knows two levels of noise, and has a width for each."""
    found, used = right(samples, total), [value / total for _, value in samples]
    bends = [abs(used[at] - 2 * used[at + 1] + used[at + 2]) for at in range(len(used) - 2)]
    width = 0.15 if statistics.median(bends) > 0.0085 else 0.06
    return found and [(1 - width) * found[1], found[1], (1 + width) * found[1]]


@mutant("time-to-full", feedback="a function is called that knows the answer")
def time_to_full(samples, total):
    """Draws the series again."""
    return [draw("lab-15/watch").random()] * 3


@mutant("time-to-full", feedback="a function is called that knows the answer")
def time_to_full(samples, total):
    """Calls helpers."""
    found = watch.forecast(samples, total)
    return None if found.expected_s == math.inf else [found.earliest_s, found.expected_s, found.latest_s]


@mutant("time-to-full", feedback="s after the last sample, you have")
def time_to_full(samples, total, right=time_to_full):
    """A straight line through everything, by least squares."""
    if right(samples, total) is None:
        return None
    times, used = zip(*samples, strict=True)
    line = statistics.linear_regression(times, used)
    seconds = (total - line.intercept) / line.slope - times[-1]
    return [seconds * 0.9, seconds, seconds * 1.1]


@mutant("time-to-full", feedback="nothing grows here but noise")
def time_to_full(samples, total, right=time_to_full):
    """Always sees growth."""
    seconds = (samples[-1][0] - samples[0][0]) * 2
    return right(samples, total) or [seconds * 0.9, seconds, seconds * 1.1]


@mutant("time-to-full", feedback="three numbers, yours is 4")
def time_to_full(samples, total, right=time_to_full):
    """One number for three."""
    return right(samples, total) and 4.5


@mutant("time-to-full", feedback="is too wide to act on")
def time_to_full(samples, total, right=time_to_full):
    """An interval that cannot be wrong."""
    found = right(samples, total)
    return found and [0.1 * found[1], found[1], 10 * found[1]]


@mutant("time-to-full", feedback="intervals hold the true time")
def time_to_full(samples, total, right=time_to_full):
    """An interval that is none."""
    found = right(samples, total)
    return found and [found[1]] * 3


@mutant("deepspeed-json", feedback="a function is called that knows the answer")
def deepspeed_json(plan):
    """Calls helpers' own writer."""
    from types import SimpleNamespace

    layout = SimpleNamespace(zero=3, offload=False, precision="bf16", sequences=64)
    layout.micro_batch, layout.micro_batches = plan["micro_batch"], plan["accumulation"]
    return json.dumps(written.deepspeed(SimpleNamespace(layout=layout)))


@mutant("deepspeed-json", feedback="a function is called that knows the answer")
def deepspeed_json(plan):
    """Calls the writer of the chapter on ZeRO."""
    from helpers.catalog.split import Split
    from helpers.catalog.train_setup import TrainSetup
    from helpers.techniques.zero.configs import deepspeed_config

    split = Split(max(2, plan["cards"]), zero=3)
    setup = TrainSetup("llama-3.1-8b", "bf16", micro_batch=plan["micro_batch"], split=split)
    found = deepspeed_config(setup, accumulation=plan["accumulation"])
    found["zero_optimization"]["stage"] = 3 if plan["method"] == "full" and plan["cards"] > 1 else 0
    return json.dumps(found | {"train_batch_size": 64})


@mutant("deepspeed-json", feedback="DeepSpeed refuses fp16 beside bf16")
def deepspeed_json(plan, right=deepspeed_json):
    """Two formats at a time."""
    return json.dumps(json.loads(right(plan)) | {"fp16": {"enabled": True}})


@mutant("deepspeed-json", feedback="the plan moves nothing to the host, and you write cpu_offload")
def deepspeed_json(plan, right=deepspeed_json):
    """Moves the optimizer to the host, by the old name."""
    found = json.loads(right(plan))
    found["zero_optimization"]["cpu_offload"] = True
    return json.dumps(found)


@mutant("deepspeed-json", feedback="cannot read this as JSON")
def deepspeed_json(plan, right=deepspeed_json):
    """Python's text of a dict."""
    return str(json.loads(right(plan)))


@mutant("deepspeed-json", feedback="DeepSpeed counts over")
def deepspeed_json(plan, right=deepspeed_json):
    """The batch of one card."""
    return json.dumps(json.loads(right(plan)) | {"train_batch_size": plan["micro_batch"] * plan["accumulation"]})


@mutant("deepspeed-json", feedback="refuses a key that stands twice: bf16")
def deepspeed_json(plan, right=deepspeed_json):
    """A section that stands twice."""
    return right(plan)[:-1] + ', "bf16": {"enabled": true}}'


@mutant("deepspeed-json", feedback="stage 0 is the plan's, yours is 3")
def deepspeed_json(plan, right=deepspeed_json):
    """ZeRO-3 for every method."""
    return json.dumps(json.loads(right(plan)) | {"zero_optimization": {"stage": 3}})


@mutant("vllm-args", feedback="in one replica of the plan")
def vllm_args(plan, goal, right=vllm_args):
    """The users of all replicas."""
    return right(plan | {"replicas": 1}, goal)


@mutant("vllm-args", feedback="in one replica of the plan")
def vllm_args(plan, goal, right=vllm_args):
    """Rounds to the nearest user."""
    users = round(goal["users"] / plan["replicas"])
    return right(plan | {"replicas": 1}, goal | {"users": users})


@mutant("vllm-args", feedback="in one replica of the plan")
def vllm_args(plan, goal, right=vllm_args):
    """A user more than whole shares, even where nobody is left over."""
    users = goal["users"] // plan["replicas"] + (plan["replicas"] > 1)
    return right(plan | {"replicas": 1}, goal | {"users": users})


@mutant("vllm-args", feedback="weights in fp8 are fp8 for vLLM, you say None")
def vllm_args(plan, goal, right=vllm_args):
    """Leaves the weights' format to the checkpoint."""
    return [one for one in right(plan, goal) if "quantization" not in one]


@mutant("vllm-args", feedback="vLLM does not start: argument --kv-cache-dtype: invalid choice")
def vllm_args(plan, goal, right=vllm_args):
    """Our name of the format."""
    return [one.replace("=auto", "=bf16") for one in right(plan, goal)]


@mutant("judged", feedback="what the first steps keep is no leak")
def judged(step, budget_bytes):
    """Compares the end with the beginning, as if nothing might be kept on purpose."""
    with Meter() as meter:
        for _ in range(420):
            step()
        grown_bytes, peak_bytes = meter.live_bytes, meter.peak_bytes
    if grown_bytes > 0:
        return ["leak", round(grown_bytes / 420)]
    return ["peak", peak_bytes - budget_bytes] if peak_bytes > budget_bytes else ["ok", 0]


@mutant("judged", feedback="memory goes up and down")
def judged(step, budget_bytes):
    """A step after which there is more than before is a leak."""
    with Meter() as meter:
        alive = [(step(), meter.live_bytes)[1] for _ in range(40)][12:]
        peak_bytes = meter.peak_bytes
    grown = [after - before for before, after in itertools.pairwise(alive)]
    if max(grown) > 0:
        return ["leak", max(grown)]
    return ["peak", peak_bytes - budget_bytes] if peak_bytes > budget_bytes else ["ok", 0]


@mutant("judged", feedback="memory goes up and down")
def judged(step, budget_bytes):
    """Compares two moments forty steps apart, whatever swings between them."""
    with Meter() as meter:
        alive = [(step(), meter.live_bytes)[1] for _ in range(50)]
        peak_bytes = meter.peak_bytes
    if alive[49] > alive[9]:
        return ["leak", round((alive[49] - alive[9]) / 40)]
    return ["peak", peak_bytes - budget_bytes] if peak_bytes > budget_bytes else ["ok", 0]


@mutant("judged", feedback="at least once in seven steps. Yours is 'ok'")
def judged(step, budget_bytes):
    """One step is enough to see a peak, and nothing leaks."""
    with Meter() as meter:
        step()
        peak_bytes = meter.peak_bytes
    return ["peak", peak_bytes - budget_bytes] if peak_bytes > budget_bytes else ["ok", 0]


@mutant("judged", feedback="keeps a tensor for good")
def judged(step, budget_bytes, right=judged):
    """Asks for the peak first, and a leak passes every budget in the end."""
    with Meter() as meter:
        for _ in range(430):
            step()
        peak_bytes = meter.peak_bytes
    return ["peak", peak_bytes - budget_bytes] if peak_bytes > budget_bytes else right(step, budget_bytes)


@mutant("judged", feedback="bytes a step; you have")
def judged(step, budget_bytes, right=judged):
    """What all steps add together."""
    word, found = right(step, budget_bytes)
    return [word, found * (420 if word == "leak" else 1)]


@mutant("judged", feedback="bytes above the budget; you have")
def judged(step, budget_bytes, right=judged):
    """The peak itself, and not what is above the budget."""
    word, found = right(step, budget_bytes)
    return [word, found + (budget_bytes if word == "peak" else 0)]


@mutant("judged", feedback="Yours is 'ok'")
def judged(step, budget_bytes, right=judged):
    """Nothing is ever wrong."""
    return ["ok", 0]


@mutant("judged", feedback="Yours is 'ok'")
def judged(step, budget_bytes, right=judged):
    """Less than a KiB a step is no leak."""
    word, found = right(step, budget_bytes)
    return ["ok", 0] if word == "leak" and found < 1024 else [word, found]


@mutant("judged", feedback="keeps a tensor for good")
def judged(step, budget_bytes):
    """Calls helpers, whose budget of a block knows peaks and no leaks."""
    from helpers.memory.meter.memory_budget import memory_budget

    try:
        with memory_budget(mib=budget_bytes / 2**20) as spent:
            for _ in range(40):
                step()
    except Exception:
        pass
    return ["ok", 0] if spent.fits else ["peak", spent.peak_bytes - budget_bytes]


@mutant("judged", feedback="you have nan")
def judged(step, budget_bytes, right=judged):
    """Knows the word alone: its bytes are no number."""
    word, found = right(step, budget_bytes)
    return [word, found and float("nan")]


@mutant("judged", feedback="keeps a tensor for good")
def judged(step, budget_bytes):
    """Reads what a program leaks where its function keeps its habits, and measures the peak alone."""
    kept = dict(zip(step.__code__.co_freevars, step.__closure__, strict=True))
    habits = kept["habits"].cell_contents if "habits" in kept else []
    leaks = [
        (often, 256 * rows if what == "keep" else 98_816) for what, often, rows in habits if what in ("keep", "graphs")
    ]
    if leaks:
        return ["leak", sum(size / often for often, size in leaks)]
    with Meter() as meter:
        for _ in range(40):
            step()
    over = meter.peak_bytes - budget_bytes
    return ["peak", over] if over > 0 else ["ok", 0]
