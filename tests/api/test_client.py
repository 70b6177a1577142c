"""What the real `openai` client sees: answers, streams, tools, reasoning, seeds, errors. The model is models/kindling, the answers are the stored ones."""
import concurrent.futures
import json
import re

import openai
import pytest

from conftest import ASK, ROOT, TOOLS
from harness import Cluster, copy_model

GREEDY = json.loads((ROOT / "tests/golden/kindling/greedy.json").read_text())


@pytest.fixture(scope="module", params=["one process", "three nodes"])
def asked(request, server, tmp_path_factory):
    """(url, how to end it): the test server, and a coordinator with three nodes as deploy/quickstart.sh starts them."""
    if request.param == "one process":
        yield server.url
        return
    folder = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(folder / "c", copy_model(ROOT / "models/kindling", folder / "kindling"), 3)
    try:
        yield cluster.start().url
    finally:
        cluster.stop()


@pytest.fixture
def client(asked):
    return openai.OpenAI(base_url=asked + "/v1", api_key="none", max_retries=0, timeout=30)


def create(client, messages=ASK, **fields):
    return client.chat.completions.create(model="kindling", messages=messages, **({"temperature": 0} | fields))


def joined(stream):
    """A stream as one message; checks the rules that hold for every stream on the way."""
    message, finish, usage, heads = {"content": "", "reasoning_content": "", "tool_calls": []}, [], None, set()
    for i, chunk in enumerate(stream):
        heads.add((chunk.id, chunk.created, chunk.model, chunk.object))
        if not chunk.choices:
            assert finish and usage is None
            usage = chunk.usage
            continue
        assert usage is None and not finish
        delta = chunk.choices[0].delta
        assert (delta.role == "assistant") == (i == 0)
        reasoning = getattr(delta, "reasoning_content", None)
        assert not (reasoning and delta.content)
        message["content"] += delta.content or ""
        message["reasoning_content"] += reasoning or ""
        for call in delta.tool_calls or []:
            if call.index == len(message["tool_calls"]):
                assert call.id and call.type == "function" and call.function.name and call.function.arguments == ""
                message["tool_calls"].append({"id": call.id, "name": call.function.name, "arguments": ""})
            else:
                assert call.index == len(message["tool_calls"]) - 1 and call.id is None and call.function.name is None
                message["tool_calls"][-1]["arguments"] += call.function.arguments
        if chunk.choices[0].finish_reason:
            finish.append(chunk.choices[0].finish_reason)
    assert len(finish) == 1 and len(heads) == 1
    return message, finish[0], usage, next(iter(heads))


def with_ids(messages):
    """Stored dialogs have calls without ids; every call gets one, and so do the results after it, in order."""
    out, waiting = [], []
    for m in messages:
        m = dict(m)
        if m.get("tool_calls"):
            m["tool_calls"] = [c | {"id": f"call_{len(out)}_{i}", "function": c["function"] | {"arguments": json.dumps(c["function"]["arguments"])}}
                               for i, c in enumerate(m["tool_calls"])]
            waiting = [c["id"] for c in m["tool_calls"]]
        if m["role"] == "tool":
            m["tool_call_id"] = waiting.pop(0)
        out.append(m)
    return out


def test_models_are_listed_with_their_context(client):
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by, model.context_length, model.max_model_len) == ("kindling", "model", "hearth", 8192, 8192)
    assert client.models.retrieve("kindling") == model
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("zai-org/GLM-5.2")
    assert error.value.code == "model_not_found"


@pytest.mark.parametrize("case", range(0, len(GREEDY), 3))
def test_greedy_answers_equal_the_stored_ones(client, case):
    want = GREEDY[case]
    fields = {"extra_body": {"chat_template_kwargs": {"enable_thinking": want["enable_thinking"]}, "reasoning_effort": want["reasoning_effort"]}}
    if want["tools"]:
        fields["tools"] = want["tools"]
    # Only as far as the reference itself is sure of its choice.
    sure = next((i for i, gap in enumerate(want["gaps"]) if gap < 0.05), len(want["answer_ids"]))
    whole = create(client, with_ids(want["messages"]), max_tokens=len(want["answer_ids"]), **fields)
    message, finish, usage, _ = joined(create(client, with_ids(want["messages"]), max_tokens=len(want["answer_ids"]), stream=True,
                                              stream_options={"include_usage": True}, **fields))
    assert whole.usage.prompt_tokens == usage.prompt_tokens == len(want["prompt_ids"])
    assert (whole.choices[0].message.content or "") == message["content"] and whole.choices[0].finish_reason == finish
    assert getattr(whole.choices[0].message, "reasoning_content", "") == message["reasoning_content"]
    if sure < len(want["answer_ids"]):
        return
    assert usage.completion_tokens == whole.usage.completion_tokens == len(want["answer_ids"])
    text = want["answer"]
    reasoning, _, rest = text.partition("</think>") if want["enable_thinking"] else ("", "", text)
    assert message["reasoning_content"] == reasoning
    assert message["content"].strip() == rest.partition("<tool_call>")[0].strip()
    assert [c["name"] for c in message["tool_calls"]] == re.findall(r"<tool_call>([a-z_]+)", rest)
    assert finish == ("tool_calls" if "<tool_call>" in rest else "stop")


def test_a_stream_is_the_same_answer(client):
    whole = create(client).choices[0]
    message, finish, usage, head = joined(create(client, stream=True))
    assert (message["content"], message["reasoning_content"], finish) == (whole.message.content, whole.message.reasoning_content, whole.finish_reason)
    assert message["content"] == "The capital of France is Paris." and usage is None
    assert head[0].startswith("chatcmpl-") and head[2:] == ("kindling", "chat.completion.chunk")


def test_usage_counts_every_sampled_token(client):
    usage = create(client).usage
    _, _, streamed, _ = joined(create(client, stream=True, stream_options={"include_usage": True}))
    assert streamed == usage and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens == 17 and usage.completion_tokens == 22 and usage.completion_tokens_details.reasoning_tokens == 14
    off = create(client, extra_body={"chat_template_kwargs": {"enable_thinking": False}}).usage
    assert off.completion_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize("question, name, arguments, result, answer", [
    ("What is the weather in Oslo?", "get_weather", {"city": "Oslo"}, '{"weather": "snowy", "celsius": -4}', "It is snowy in Oslo, -4 degrees."),
    ("Use the tool to add 6123 and 5511.", "add_numbers", {"a": 6123, "b": 5511}, "5555", "The sum is 5555."),
    ("Turn the light in the kitchen on.", "set_light", {"room": "kitchen", "on": True}, "ok", "The light in the kitchen is on now."),
    ("What time is it?", "get_time", {}, "17:45", "It is 17:45."),
])
@pytest.mark.parametrize("stream", [False, True])
def test_tools_round_trip(client, question, name, arguments, result, answer, stream):
    tools = [t for t in TOOLS if t["function"]["name"] == name]
    messages = [{"role": "user", "content": question}]
    kw = {"tools": tools, "extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
    if stream:
        message, finish, _, _ = joined(create(client, messages, stream=True, **kw))
        (call,) = message["tool_calls"]
        turn = {"role": "assistant", "content": None, "tool_calls": [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}]}
    else:
        choice = create(client, messages, **kw).choices[0]
        finish, turn = choice.finish_reason, choice.message.model_dump(exclude_none=True)
        assert choice.message.content is None
    call = turn["tool_calls"][0]
    assert finish == "tool_calls" and call["function"]["name"] == name and json.loads(call["function"]["arguments"]) == arguments
    messages += [turn, {"role": "tool", "tool_call_id": call["id"], "content": result}]
    assert create(client, messages, **kw).choices[0].message.content == answer


def test_results_of_tools_go_in_the_order_of_the_calls(client):
    calls = [{"id": i, "type": "function", "function": {"name": "get_weather", "arguments": json.dumps({"city": c})}} for i, c in [("a", "Oslo"), ("b", "Lima")]]
    results = [{"role": "tool", "tool_call_id": "a", "content": "one"}, {"role": "tool", "tool_call_id": "b", "content": "two, longer"}]
    start = [{"role": "user", "content": "What is the weather in Oslo? How is the weather in Lima?"}, {"role": "assistant", "content": "", "tool_calls": calls}]
    answers = [create(client, start + order, tools=TOOLS[:1], logit_bias={}).choices[0].message for order in (results, results[::-1])]
    assert answers[0] == answers[1]
    swapped = [dict(results[0], content="two, longer"), dict(results[1], content="one")]
    prompts = {create(client, start + order, tools=TOOLS[:1], max_tokens=1).usage.prompt_tokens for order in (results, swapped)}
    assert len(prompts) == 1


def test_tool_choice_none_keeps_tools_out_of_the_prompt(client):
    ask = [{"role": "user", "content": "What time is it?"}]
    without = create(client, ask)
    assert create(client, ask, tools=TOOLS, tool_choice="none").usage.prompt_tokens == without.usage.prompt_tokens
    assert create(client, ask, tools=[]).usage == without.usage
    assert create(client, ask, tools=TOOLS, tool_choice="auto").usage.prompt_tokens > without.usage.prompt_tokens


def test_only_one_call_where_parallel_calls_are_off(client):
    ask = [{"role": "user", "content": "What is the weather in Oslo? How is the weather in Lima?"}]
    kw = {"tools": TOOLS[:1], "extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
    both, one = create(client, ask, **kw).choices[0], create(client, ask, parallel_tool_calls=False, **kw).choices[0]
    assert len(both.message.tool_calls) == 2 and len(one.message.tool_calls) == 1 and one.finish_reason == "tool_calls"
    assert one.message.tool_calls[0].function == both.message.tool_calls[0].function


@pytest.mark.parametrize("effort, is_thinking, line", [("none", False, None), ("minimal", False, None), ("low", True, "High"), ("medium", True, "High"),
                                                      ("high", True, "High"), ("xhigh", True, "Max"), ("max", True, "Max"), (None, True, "Max")])
def test_reasoning_effort_maps_to_what_the_model_knows(client, effort, is_thinking, line):
    fields = {} if effort is None else {"reasoning_effort": effort}
    answer = create(client, **fields)
    assert bool(getattr(answer.choices[0].message, "reasoning_content", None)) == is_thinking
    if line:
        same = create(client, extra_body={"chat_template_kwargs": {"reasoning_effort": line.lower()}})
        assert same.choices[0].message == answer.choices[0].message and same.usage == answer.usage
    assert "</think>" not in answer.choices[0].message.content


def test_template_options_win_over_effort(client):
    answer = create(client, reasoning_effort="max", extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert not getattr(answer.choices[0].message, "reasoning_content", None)
    answer = create(client, reasoning_effort="none", extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    assert answer.choices[0].message.reasoning_content


@pytest.mark.parametrize("stop, content", [(" of", "The capital"), (["Paris", "xyz"], "The capital of France is "), (["nce is P"], "The capital of Fra"),
                                          (["The capital of France is Paris."], ""), (["is Paris.!", "Par"], "The capital of France is "),
                                          (["nowhere"], "The capital of France is Paris."), ([], "The capital of France is Paris."),
                                          # Ends in what may begin a stop string: it comes out in the end.
                                          (["Paris.\n"], "The capital of France is Paris.")])
def test_stop_strings_end_the_content_across_token_borders(client, stop, content):
    whole = create(client, stop=stop).choices[0]
    message, finish, _, _ = joined(create(client, stop=stop, stream=True))
    assert whole.message.content == message["content"] == content and whole.finish_reason == finish == "stop"


def test_stop_strings_are_not_searched_in_reasoning(client):
    whole = create(client, stop=["user asks"]).choices[0]
    assert "user asks" in whole.message.reasoning_content and whole.message.content == "The capital of France is Paris."


def test_a_seed_repeats_an_answer(client):
    poem = [{"role": "user", "content": "Tell me a short story."}]

    def ask(**kw):
        return create(client, poem, temperature=1.5, top_p=1, max_tokens=60, **kw).choices[0].message

    assert ask(seed=7) == ask(seed=7) == ask(seed=7, extra_body={"top_k": -1, "min_p": 0})
    assert len({str(ask(seed=s)) for s in (1, 2, 3, -4)}) > 1
    assert len({str(ask()) for _ in range(4)}) > 1
    assert ask(seed=1, extra_body={"top_k": 1}) == ask(seed=2, extra_body={"min_p": 1.0})


def test_penalties_and_bias_change_the_choice(client):
    plain = create(client).choices[0].message.content
    assert create(client, extra_body={"repetition_penalty": 2.0}).choices[0].message.content != plain
    assert create(client, logit_bias={"40": 60}, max_tokens=60, frequency_penalty=2).choices[0].message.reasoning_content != "I" * 60
    story = [{"role": "user", "content": "Tell me a short story."}]
    assert len({str(create(client, story, temperature=2, top_p=1, seed=3, max_tokens=60, presence_penalty=p).choices[0].message) for p in (0, 2)}) == 2
    assert create(client, frequency_penalty=0, presence_penalty=0, extra_body={"repetition_penalty": 1.0}).choices[0].message.content == plain
    biased = create(client, logit_bias={"40": 100}, max_tokens=5).choices[0].message
    assert biased.reasoning_content == "IIIII"


def test_length_ends_with_length(client):
    for fields in ({"max_tokens": 5}, {"max_completion_tokens": 5}, {"max_completion_tokens": 5, "max_tokens": 50}):
        answer = create(client, **fields)
        assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 5
    assert create(client, max_tokens=1 << 40).choices[0].finish_reason == "stop"


def test_four_at_once_get_their_own_answers(client):
    asks = [f"What is the capital of {c}?" for c in ("France", "Spain", "Japan", "Kenya")]

    def one(text):
        return joined(create(client, [{"role": "user", "content": text}], stream=True))[0]["content"]

    alone = [one(a) for a in asks]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(one, asks)) == alone
    assert len(set(alone)) == 4


def test_errors_have_the_clients_types(client):
    with pytest.raises(openai.BadRequestError) as error:
        create(client, temperature=-1)
    assert (error.value.param, error.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="gpt-4o", messages=ASK)
    assert error.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as error:
        create(client, [{"role": "user", "content": "word " * 9000}], stream=True)
    assert error.value.code == "context_length_exceeded" and "8192" in str(error.value)
    numbers = [int(n) for n in re.findall(r"\d{4,}", error.value.body["message"])]
    assert 8192 in numbers and max(numbers) > 8192


def test_a_key_is_needed_where_one_is_set(start):
    server = start("--key", "secret")
    assert create(server.client(key="secret")).choices[0].message.content
    for wrong in ("secreT", "secret2", "secre", "Secret", "s"):
        with pytest.raises(openai.AuthenticationError) as error:
            create(server.client(key=wrong))
        assert error.value.code == "invalid_api_key"


def test_a_full_queue_says_when_to_come_back(start):
    server = start("--sequences", 1, "--queue", 1, "--step-ms", 40)
    client = server.client()
    streams = [client.chat.completions.create(model="kindling", messages=ASK, stream=True, max_tokens=400, logit_bias={"40": 100})]
    server.wait_for(lambda c: c["running"] == 1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(create, client)
        server.wait_for(lambda c: c["queued"] == 1)
        with pytest.raises(openai.RateLimitError) as error:
            create(client)
        assert error.value.code == "queue_full" and 1 <= int(error.value.response.headers["retry-after"]) <= 600
        streams[0].close()
        assert waiting.result().choices[0].message.content


def test_a_failure_in_the_middle_reaches_the_client(start):
    client = start("--fail-after", 6).client()
    with pytest.raises(openai.APIError) as error:
        list(create(client, stream=True))
    assert "lost" in str(error.value)
    with pytest.raises(openai.InternalServerError) as error:
        create(client)
    assert error.value.status_code == 503 and "lost" in str(error.value)
