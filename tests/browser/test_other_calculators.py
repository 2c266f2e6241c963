"""The other calculators in real JupyterLab: controls move what is shown."""

from __future__ import annotations

import pytest

from tests.browser.conftest import CALCULATORS

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TITLE = ".widget-html svg > text"


def unfold(page) -> int:
    """Open every *more* on the page; how many there are."""
    more = page.locator(".jupyter-widget-Collapse-header").all()
    for header in more:
        header.click()
    return len(more)


@pytest.fixture
def live(open_notebook, request):
    page = open_notebook(f"{request.param}.ipynb")
    page.evaluate("jupyterapp.shell.currentWidget.context.sessionContext.ready")
    page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_selector(".widget-html svg")
    unfold(page)
    yield page
    page.close()


def title(page) -> str:
    return page.locator(TITLE).first.text_content()


def wait_for_another(page, before: str) -> None:
    page.wait_for_function(
        "before => document.querySelector('.widget-html svg > text').textContent !== before", arg=before
    )


def number(page, name: str):
    """The box that a screen reader calls so, while it is shown."""
    return page.get_by_role("spinbutton", name=name, exact=True)


def set_number(page, name: str, value: int) -> None:
    number(page, name).fill(str(value))
    number(page, name).press("Enter")


def choose(page, name: str, value: str) -> None:
    page.locator(".widget-dropdown", has=page.get_by_text(name, exact=True)).locator("select").select_option(value)


CUT_OFF = """() => [...document.querySelectorAll('.widget-gridbox select, .widget-gridbox input, .noUi-base')].filter(
    control => control.getBoundingClientRect().right > control.closest('.jp-OutputArea').getBoundingClientRect().right
).map(control => control.parentElement.innerText)"""
TRUNCATED = """() => [...document.querySelectorAll('.widget-gridbox .widget-label')].filter(
    label => label.scrollWidth > label.clientWidth).map(label => label.innerText)"""


def test_beside_a_side_bar_no_control_is_cut_off_and_none_says_its_place_in_a_list(browser, lab, screenshot) -> None:
    """Every calculator, in a window of 800 px of which JupyterLab leaves half."""
    page = browser.new_page(viewport={"width": 800, "height": 1000})
    page.goto(lab.url("every.ipynb").replace("/doc/", "/lab/"))
    page.wait_for_selector(".jp-NotebookPanel .jp-CodeCell")
    page.evaluate("jupyterapp.shell.currentWidget.context.sessionContext.ready")
    page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_function(f"document.querySelectorAll('p.invites').length === {1 + len(CALCULATORS)}")
    assert unfold(page) > 5
    screenshot(page, "every-800")
    assert page.evaluate(CUT_OFF) == []
    assert page.evaluate(TRUNCATED) == []
    assert page.get_by_role("slider").count() == 0
    assert number(page, "sequence, tokens").first.input_value() == "2048"
    page.close()


GROUND = """element => {
    const style = name => getComputedStyle(document.body).getPropertyValue(name).trim()
    const probe = document.body.appendChild(document.createElement('i'))
    probe.style.color = style('--jp-layout-color1')
    const page = getComputedStyle(probe).color
    probe.remove()
    return [getComputedStyle(element).fill, page]
}"""


@pytest.mark.parametrize("live", ["kv_cache", "serving_load", "zero"], indirect=True)
def test_cards_follow_the_theme(live, set_theme, screenshot, request) -> None:
    """The card has the page's ground, and no word on it is as good as invisible."""
    name, grounds = request.node.callspec.params["live"], []
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        set_theme(live, theme)
        cards = live.locator(".widget-html svg rect[rx]").all()
        found = [card.evaluate(GROUND) for card in cards]
        assert all(card == page for card, page in found), (theme, found)
        grounds.append(found[0][0])
        live.locator(".widget-html svg").first.scroll_into_view_if_needed()
        screenshot(live, f"{name}-{theme.split()[1].lower()}-theme")
        live.locator("code.command").scroll_into_view_if_needed()
        screenshot(live, f"{name}-{theme.split()[1].lower()}-theme-foot")
    assert grounds[0] != grounds[1]


@pytest.mark.parametrize("live", ["roofline"], indirect=True)
def test_more_tokens_and_another_operator_move_the_roofline(live, screenshot) -> None:
    screenshot(live, "roofline-light")
    before = title(live)
    assert "memory-bound" in before
    set_number(live, "tokens", 4096)
    live.wait_for_function("document.querySelector('.widget-html svg > text').textContent.includes('compute-bound')")
    assert number(live, "outputs").is_visible()
    before = title(live)
    choose(live, "operator", "softmax")
    wait_for_another(live, before)
    number(live, "outputs").wait_for(state="hidden")  # softmax has none
    screenshot(live, "roofline-softmax")


@pytest.mark.parametrize("live", ["allocation"], indirect=True)
def test_steps_move_the_segments_and_play_plays(live, set_theme, screenshot) -> None:
    before = title(live)
    number(live, "event").press("ArrowUp")
    wait_for_another(live, before)
    assert title(live).startswith("event 4")
    screenshot(live, "allocation-light")
    before = title(live)
    live.locator(".widget-play button").first.click()
    wait_for_another(live, before)
    set_theme(live, "JupyterLab Dark")
    screenshot(live, "allocation-dark")
    set_theme(live, "JupyterLab Light")


@pytest.mark.parametrize("live", ["quantization"], indirect=True)
def test_another_format_and_what_is_skipped_move_the_bar(live, screenshot) -> None:
    screenshot(live, "quantization-light")
    before = title(live)
    assert "llama-3-70b in nf4" in before
    choose(live, "model", "mixtral-8x7b")
    wait_for_another(live, before)
    assert "The experts stay as they are" in live.locator("p.sentence").first.text_content()
    before = title(live)
    choose(live, "skipped", "lm_head")
    wait_for_another(live, before)
    assert "The experts stay" not in live.locator("p.sentence").first.text_content()
    before = title(live)
    choose(live, "weights", "int3-g64")
    wait_for_another(live, before)
    screenshot(live, "quantization-int3")


@pytest.mark.parametrize("live", ["checkpointing"], indirect=True)
def test_another_policy_moves_the_bar_and_the_front(live, screenshot) -> None:
    screenshot(live, "checkpointing-light")
    before = title(live)
    assert "full" in before
    choose(live, "policy", "selective")
    wait_for_another(live, before)
    assert "for 0.0 % more FLOPs" in live.locator("p.sentence").first.text_content()
    before = title(live)
    set_number(live, "micro-batch", 2)
    wait_for_another(live, before)
    screenshot(live, "checkpointing-selective")


@pytest.mark.parametrize("live", ["zero"], indirect=True)
def test_another_stage_and_more_ranks_move_the_bars(live, screenshot) -> None:
    screenshot(live, "zero-light")
    before = title(live)
    assert "ZeRO-1 on 8 ranks" in before
    set_number(live, "ZeRO stage", 2)
    wait_for_another(live, before)
    assert "ZeRO-2 leaves" in live.locator("p.sentence").first.text_content()
    before = title(live)
    set_number(live, "world size", 16)
    wait_for_another(live, before)
    assert "16 ranks" in title(live)
    choose(live, "link", "10 Gb/s network")
    live.wait_for_function("document.querySelector('p.sentence').textContent.includes('The link is too slow')")
    screenshot(live, "zero-slow-link")


@pytest.mark.parametrize("live", ["mesh"], indirect=True)
def test_more_stages_draw_the_schedule_and_a_mixture_divides_its_experts(live, screenshot) -> None:
    before = title(live)
    assert "TP 8 x DP 8" in before
    set_number(live, "pipeline", 2)
    wait_for_another(live, before)
    assert "PP 2" in title(live)
    assert live.locator(".widget-html svg > text", has_text="The schedule, drawn with 2 stages").count() == 1
    screenshot(live, "mesh")
    before = title(live)
    choose(live, "model", "mixtral-8x7b")
    wait_for_another(live, before)
    before = title(live)
    set_number(live, "experts", 2)
    wait_for_another(live, before)
    assert "EP 2" in title(live)


@pytest.mark.parametrize("live", ["planner"], indirect=True)
def test_a_shorter_deadline_moves_the_plan_along_the_frontier(live, screenshot) -> None:
    before = title(live)
    set_number(live, "days at most", 60)
    wait_for_another(live, before)
    assert title(live).startswith("llama-3.1-70b: $")
    screenshot(live, "planner")


@pytest.mark.parametrize("live", ["service_planner"], indirect=True)
def test_fewer_milliseconds_move_a_service_to_more_cards(live, screenshot) -> None:
    before = title(live)
    assert before == "llama-3.1-70b: $31.92 an hour, 44 ms a token on 8 x h100-80gb"
    set_number(live, "ms a token", 40)
    wait_for_another(live, before)
    assert title(live).endswith("on 12 x h100-80gb")
    assert "which is too long" in live.locator("p.sentence").first.text_content()
    before = title(live)
    choose(live, "formats", "16 bits")
    wait_for_another(live, before)
    assert title(live).endswith(", too slow")
    set_number(live, "cards at most", 8)
    live.wait_for_selector("pre.error")  # 200 contexts in 16 bits on eight cards; the controls stay
    set_number(live, "cards at most", 16)
    live.wait_for_selector(".widget-html svg")
    screenshot(live, "service-planner")


@pytest.mark.parametrize("live", ["kv_cache"], indirect=True)
def test_another_cache_and_more_ranks_move_the_bar_and_the_curves(live, screenshot) -> None:
    screenshot(live, "kv-cache-light")
    before = title(live)
    assert "32.00 GiB of KV cache" in before
    choose(live, "cache", "int4")
    wait_for_another(live, before)
    assert "int4 is 3.17× smaller than bf16, not 4×." in live.locator("p.sentence").first.text_content()
    assert live.locator(".widget-html svg .curve").count() == 3
    before = title(live)
    set_number(live, "tensor parallel", 2)
    wait_for_another(live, before)
    assert "on each of 2 GPUs" in title(live)
    choose(live, "model", "phi-4")
    live.wait_for_function("document.querySelector('.widget-html svg > text').textContent.startsWith('phi-4')")
    set_number(live, "tensor parallel", 4)
    live.wait_for_selector("pre.error")  # 10 KV heads on 4 ranks; the controls stay
    set_number(live, "tensor parallel", 2)
    live.wait_for_selector(".widget-html svg")
    screenshot(live, "kv-cache-int4")


@pytest.mark.parametrize("live", ["block_map"], indirect=True)
def test_another_policy_and_play_move_the_blocks(live, set_theme, screenshot) -> None:
    screenshot(live, "block-map-light")
    before = title(live)
    assert before.startswith("step 12 of 91, chat, paged")
    choose(live, "policy", "contiguous")
    wait_for_another(live, before)
    assert "waits until a region is free" in live.locator("p.sentence").first.text_content()
    before = title(live)
    live.locator(".widget-play button").first.click()
    wait_for_another(live, before)
    assert "of 172, chat, contiguous" in title(live)  # it plays on
    choose(live, "policy", "prefix")
    live.wait_for_function("document.querySelector('.widget-html svg > text').textContent.includes('prefix')")
    assert live.locator(".widget-html svg rect.shared").count() > 0
    set_theme(live, "JupyterLab Dark")
    screenshot(live, "block-map-dark")
    set_theme(live, "JupyterLab Light")


BITS = """name => [...document.querySelectorAll('.widget-html svg rect.bit')].filter(
    box => box.querySelector('title').textContent.startsWith(name + ':')
).map(box => box.nextElementSibling.textContent).join('')"""


@pytest.mark.parametrize("live", ["numbers"], indirect=True)
def test_another_number_has_other_bits_and_a_bad_one_says_so(live, set_theme, screenshot) -> None:
    assert live.evaluate(BITS, "fp16") == f"{0x2E66:016b}"  # of 0.1
    screenshot(live, "numbers-light")
    typed = live.locator(".widget-text", has=live.get_by_text("number", exact=True)).locator("input")
    before = title(live)
    typed.fill("-2**-24")
    typed.press("Enter")
    wait_for_another(live, before)
    assert live.evaluate(BITS, "fp16") == f"{0x8001:016b}"
    assert "1 of 11 significant bits is left" in live.locator("p.sentence").first.text_content()
    typed.fill("two")
    typed.press("Enter")
    message = live.locator(".widget-html pre.error")
    message.wait_for()
    assert "unknown number 'two'" in message.text_content()
    typed.fill("70000")
    typed.press("Enter")
    live.wait_for_selector(".widget-html svg")
    assert "overflows to inf" in title(live)
    choose(live, "format", "mxfp4")
    live.wait_for_function("document.querySelector('.widget-html svg > svg > text').textContent.includes('mxfp4')")
    assert number(live, "block's largest ×").is_visible()
    set_theme(live, "JupyterLab Dark")
    screenshot(live, "numbers-dark")
    set_theme(live, "JupyterLab Light")


@pytest.mark.parametrize("live", ["tensor_numbers"], indirect=True)
def test_a_scale_moves_a_tensor_into_the_format(live, set_theme, screenshot) -> None:
    screenshot(live, "tensor-numbers-light")
    assert title(live) == "activation gradients in fp16: 54 % become 0"
    whole = ".widget-html svg rect.bin[data-part='normal']"
    assert live.locator(whole).count() < 5
    set_number(live, "scale 2 to the", 16)
    live.wait_for_function("document.querySelector('.widget-html svg > text').textContent.includes('× 2**16')")
    assert title(live) == "activation gradients × 2**16 in fp16: 9.3 % become 0, 54 % without the scale"
    assert live.locator(whole).count() > 10
    set_theme(live, "JupyterLab Dark")
    screenshot(live, "tensor-numbers-dark")
    set_theme(live, "JupyterLab Light")


@pytest.mark.parametrize("live", ["fine_tuning"], indirect=True)
def test_checkpointing_and_another_method_move_the_bars(live, screenshot) -> None:
    before = title(live)
    assert "LoRA of llama-3-8b" in before
    choose(live, "checkpointing", "full")
    wait_for_another(live, before)
    assert "Fits the NVIDIA GeForce RTX 4090" in live.locator("p.sentence").first.text_content()
    before = title(live)
    choose(live, "method", "QLoRA")
    wait_for_another(live, before)
    assert "QLoRA of llama-3-8b" in title(live)
    screenshot(live, "fine-tuning-qlora")


@pytest.mark.parametrize("live", ["reinforcement"], indirect=True)
def test_an_engine_that_sleeps_leaves_the_backward_pass(live, screenshot) -> None:
    before = title(live)
    choose(live, "who generates", "vllm")
    wait_for_another(live, before)
    before = title(live)
    assert before.endswith("backward")
    choose(live, "vLLM meanwhile", "asleep")
    wait_for_another(live, before)
    assert title(live).endswith("generation")
    screenshot(live, "reinforcement")


@pytest.mark.parametrize("live", ["attention"], indirect=True)
def test_more_tokens_and_one_query_move_what_attention_takes(live, screenshot) -> None:
    screenshot(live, "attention-light")
    before = title(live)
    set_number(live, "tokens", 8192)
    wait_for_another(live, before)
    before = title(live)
    choose(live, "phase", "decode")
    wait_for_another(live, before)
    screenshot(live, "attention-decode")


@pytest.mark.parametrize("live", ["serving_load"], indirect=True)
def test_more_clients_and_other_lengths_move_the_service_past_saturation(live, screenshot) -> None:
    screenshot(live, "serving-load-start")
    before = title(live)
    assert before.startswith("50 clients of llama-3-70b: 833 tokens/s")
    assert not number(live, "prompt, tokens").is_visible()  # until the lengths are custom
    set_number(live, "clients", 100)
    wait_for_another(live, before)
    assert "8 of the 100 are too many" in live.locator("p.sentence").first.text_content()
    before = title(live)
    choose(live, "lengths", "code")
    wait_for_another(live, before)
    assert "prompts fill the token budget" in live.locator("p.sentence").first.text_content()
    choose(live, "lengths", "custom")
    number(live, "prompt, tokens").wait_for()
    choose(live, "weights", "bf16")
    set_number(live, "tensor parallel", 1)
    live.wait_for_selector("pre.error")  # 70B in 16 bits on one card; the controls stay
    set_number(live, "tensor parallel", 2)
    live.wait_for_selector(".widget-html svg")
    screenshot(live, "serving-load-custom")


@pytest.mark.parametrize("live", ["offload"], indirect=True)
def test_a_prompt_hides_the_copies_and_training_has_other_controls(live, screenshot) -> None:
    screenshot(live, "offload-start")
    before = title(live)
    assert before.startswith("llama-3-70b in fp8-e4m3, decode of 1 token: ")
    assert before.endswith("copies exposed")
    choose(live, "step", "prefill")
    wait_for_another(live, before)
    before = title(live)
    set_number(live, "users", 4)  # four prompts of 2,048 tokens
    wait_for_another(live, before)
    assert title(live).endswith("copies hidden")
    screenshot(live, "offload-hidden")
    before = title(live)
    choose(live, "question", "train")
    wait_for_another(live, before)
    number(live, "users").wait_for(state="hidden")
    assert "a step at least, set by" in title(live)
    choose(live, "GPU", "h100-80gb")
    choose(live, "optimizer in", "nvme")
    live.wait_for_function(
        "document.querySelector('.widget-html svg > text').textContent.includes('set by writing to the disk')"
    )
    screenshot(live, "offload-train")
    live.locator("code.command").scroll_into_view_if_needed()
    screenshot(live, "offload-train-foot")
