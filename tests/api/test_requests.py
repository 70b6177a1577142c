"""Every field of a request at and beyond its limits, and what people write that looks like the model's own signs."""
import json
import subprocess

import pytest

from conftest import ASK, HEARTH, ROOT, TOOLS, events

CALL = {"id": "a", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
USER = {"role": "user", "content": "Hi"}

WRONG = [  # fields, param, code
    ({"messages": None}, "messages", None), ({"messages": []}, "messages", None), ({"messages": "Hi"}, "messages", None), ({"messages": {}}, "messages", None),
    ({"messages": ["Hi"]}, "messages[0]", None), ({"messages": [USER, {"content": "x"}]}, "messages[1].role", None),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", None), ({"messages": [{"role": 1, "content": "x"}]}, "messages[0].role", None),
    ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content", None), ({"messages": [{"role": "user", "content": {}}]}, "messages[0].content", None),
    ({"messages": [{"role": "user", "content": [1]}]}, "messages[0].content[0]", None),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]", None),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages[0].content[1]",
     "unsupported_parameter"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "messages[0].content[0]", "unsupported_parameter"),
    ({"messages": [USER, {"role": "assistant", "reasoning_content": 1}]}, "messages[1].reasoning_content", None),
    ({"messages": [USER, {"role": "assistant", "tool_calls": {}}]}, "messages[1].tool_calls", None),
    ({"messages": [USER, {"role": "assistant", "tool_calls": [1]}]}, "messages[1].tool_calls[0]", None),
    ({"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "a", "function": {"arguments": "{}"}}]}]}, "messages[1].tool_calls[0].function.name", None),
    *[({"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": a}}]}]},
       "messages[1].tool_calls[0].function.arguments", None) for a in ("[]", "1", '"{}"', "{", "null", [], 3, "[" * 100000, '{"a":1,"a":2}')],
    ({"messages": [USER, {"role": "tool", "tool_call_id": "a", "content": "x"}]}, "messages[1].tool_call_id", None),
    ({"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "b", "content": "x"}]}, "messages[2].tool_call_id", None),
    ({"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "x"}]}, "messages[2].tool_call_id", None),
    ({"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}] + 2 * [{"role": "tool", "tool_call_id": "a", "content": "x"}]}, "messages[3].tool_call_id",
     None),
    *[({name: v}, name, None) for name in ("max_tokens", "max_completion_tokens") for v in (0, -1, 1.5, "5", True, [], -(2 ** 63))],
    *[({"temperature": v}, "temperature", None) for v in (-1, 1e308, 100.1, "1", True, [], {})],
    *[({"top_p": v}, "top_p", None) for v in (-0.1, 1.0000001, "1", True)], *[({"min_p": v}, "min_p", None) for v in (-0.1, 1.1, "0")],
    *[({"top_k": v}, "top_k", None) for v in (-2, 1.5, "3", True)], *[({"repetition_penalty": v}, "repetition_penalty", None) for v in (0, -1, 101, "1")],
    *[({name: v}, name, None) for name in ("frequency_penalty", "presence_penalty") for v in (-2.1, 2.1, "0")],
    *[({"seed": v}, "seed", None) for v in (1.5, "1", True)],
    *[({"stop": v}, "stop", None) for v in ("", [""], ["a", ""], 1, [1], [["a"]], {}, ["x"] * 17, ["x"] * 10000)],
    *[({"logit_bias": v}, "logit_bias", None) for v in ([], "a", {"-1": 1}, {str(2 ** 40): 1}, {"a": 1}, {"": 1}, {"1": 101}, {"1": -101}, {"1": "x"}, {"01": 1},
                                                        {"1.5": 1}, {"3711": 1}, {"99999999999999999999999": 1})],
    *[({"n": v}, "n", None) for v in (0, -1, "1", 1.5)], *[({"n": v}, "n", "unsupported_parameter") for v in (2, 10 ** 9)],
    *[({"stream": v}, "stream", None) for v in (1, "true", [])],
    ({"stream": True, "stream_options": 1}, "stream_options", None), ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", None),
    ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"pattern": "(" * 60000}}}}, "response_format", "unsupported_parameter"),
    ({"response_format": "text"}, "response_format", None), ({"response_format": {}}, "response_format", None),
    ({"tool_choice": "required"}, "tool_choice", "unsupported_parameter"), ({"tool_choice": "any"}, "tool_choice", None), ({"tool_choice": 1}, "tool_choice", None),
    ({"tool_choice": {"type": "function", "function": {"name": "get_time"}}, "tools": TOOLS}, "tool_choice", "unsupported_parameter"),
    *[({name: v}, name, "unsupported_parameter") for name, v in [
        ("logprobs", True), ("top_logprobs", 5), ("top_logprobs", 10 ** 6), ("audio", {"voice": "x"}), ("modalities", ["text", "audio"]),
        ("functions", [{"name": "f"}]), ("web_search_options", {"x": 1}), ("guided_json", {"type": "object"}), ("min_tokens", 5), ("stop_token_ids", [1])]],
    ({"tools": {}}, "tools", None), ({"tools": [{"type": "function"}]}, "tools[0]", None), ({"tools": [TOOLS[0], 1]}, "tools[1]", "unsupported_parameter"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0]", None),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools[0]", None),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls", None),
    ({"reasoning_effort": "huge"}, "reasoning_effort", None), ({"reasoning_effort": 1}, "reasoning_effort", None),
    ({"chat_template_kwargs": []}, "chat_template_kwargs", None), ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs.enable_thinking", None),
    ({"chat_template_kwargs": {"clear_thinking": "x"}}, "chat_template_kwargs.clear_thinking", None),
    ({"model": 1}, "model", None),
]


@pytest.mark.parametrize("fields, param, code", WRONG, ids=lambda v: str(v)[:40])
def test_a_wrong_field_is_named(server, fields, param, code):
    reply = server.chat(**fields)
    assert reply.status == 400 and reply.headers["content-type"] == "application/json", reply.raw
    assert (reply.error["type"], reply.error["param"], reply.error["code"]) == ("invalid_request_error", param, code)
    assert reply.error["message"]


FINE = [
    {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "verbosity": "low", "prompt_cache_key": "k", "nonsense": [1, {"x": None}]},
    {k: None for k in ("model", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "logit_bias", "n", "stream",
                       "stream_options", "response_format", "tool_choice", "tools", "logprobs", "functions", "reasoning_effort", "chat_template_kwargs",
                       "frequency_penalty", "repetition_penalty", "parallel_tool_calls", "audio", "modalities")},
    {"n": 1, "response_format": {"type": "text"}, "tool_choice": "none", "logprobs": False, "top_logprobs": 0, "modalities": ["text"], "functions": []},
    {"max_tokens": 2 ** 63 - 1}, {"max_tokens": 2 ** 31}, {"seed": -(2 ** 63)}, {"seed": 2 ** 63 - 1}, {"top_p": 0}, {"top_k": 2 ** 40}, {"top_k": -1}, {"stop": []},
    {"stop": ["x"] * 16}, {"logit_bias": {}}, {"logit_bias": {"0": -100, "3621": 0.5}}, {"tools": [], "tool_choice": "auto"},
    {"messages": [{"role": "developer", "content": "Be short.", "name": "x"}, USER | {"name": "Ada"}]},
    {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "1"}]}],
     "tools": TOOLS[3:]},
    {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "get_time", "arguments": {}}}]},
                  {"role": "tool", "tool_call_id": "a", "content": ""}], "tools": TOOLS[3:]},
    {"messages": [{"role": "system", "content": ""}, {"role": "user", "content": None}]}, {"messages": [{"role": "user"}]},
    {"messages": [USER, {"role": "assistant", "content": "thought</think>said"}, USER]},
    {"thinking": {"type": "disabled"}},
]


@pytest.mark.parametrize("fields", FINE, ids=lambda v: str(v)[:40])
def test_what_means_nothing_or_the_default_is_accepted(server, fields):
    reply = server.chat(**({"max_tokens": 3} | fields if "max_tokens" not in fields else fields))
    assert reply.status == 200, reply.raw


def n_prompt(server, *messages, **fields):
    reply = server.chat(messages=list(messages), max_tokens=1, **fields)
    assert reply.status == 200, reply.raw
    return reply.json["usage"]["prompt_tokens"]


def test_text_parts_are_joined_and_empty_content_is_empty(server):
    def parts(*texts):
        return {"role": "user", "content": [{"type": "text", "text": t} for t in texts]}

    whole = server.chat(messages=[{"role": "user", "content": "What is the capital of France?"}]).json
    split = server.chat(messages=[parts("What is the cap", "ital of ", "", "France?")]).json
    assert split["usage"] == whole["usage"] and split["choices"] == whole["choices"]
    empty = n_prompt(server, {"role": "user", "content": ""})
    assert n_prompt(server, {"role": "user", "content": None}) == n_prompt(server, {"role": "user"}) == n_prompt(server, parts()) == empty


def test_developer_is_system_and_names_are_ignored(server):
    a = server.chat(messages=[{"role": "system", "content": "Be kind."}, ASK[0]]).json
    b = server.chat(messages=[{"role": "developer", "content": "Be kind.", "name": "boss"}, ASK[0] | {"name": "Ada"}]).json
    assert a["usage"] == b["usage"] and a["choices"] == b["choices"]


@pytest.mark.parametrize("sign", ["<|user|>", "<|assistant|>", "<|system|>", "<|observation|>", "<|endoftext|>", "[gMASK]<sop>", "<think>", "</think>", "<tool_call>",
                                  "</tool_call>", "<arg_key>", "<tool_response>"])
def test_signs_that_people_write_are_text(server, sign):
    """A sign that became one token would count as one; as text it counts as many as its characters make."""
    plain = n_prompt(server, {"role": "user", "content": "x"})
    assert n_prompt(server, {"role": "user", "content": "x" + sign}) > plain + 1
    halves = [{"role": "user", "content": [{"type": "text", "text": "x" + sign[:3]}, {"type": "text", "text": sign[3:]}]}]
    assert n_prompt(server, *halves) == n_prompt(server, {"role": "user", "content": "x" + sign})
    called = {"role": "assistant", "tool_calls": [CALL]}
    results = [n_prompt(server, USER, called, {"role": "tool", "tool_call_id": "a", "content": c}, tools=TOOLS[3:]) for c in ("x", "x" + sign)]
    assert results[1] > results[0] + 1


def test_reasoning_in_the_history_is_split_as_the_template_splits_it(server):
    given = n_prompt(server, USER, {"role": "assistant", "content": "said", "reasoning_content": "thought"}, USER, chat_template_kwargs={"clear_thinking": False})
    inside = n_prompt(server, USER, {"role": "assistant", "content": "<think>thought</think>said"}, USER, chat_template_kwargs={"clear_thinking": False})
    alias = n_prompt(server, USER, {"role": "assistant", "content": "said", "reasoning": "thought"}, USER, chat_template_kwargs={"clear_thinking": False})
    cleared = n_prompt(server, USER, {"role": "assistant", "content": "said", "reasoning_content": "thought"}, USER)
    assert given == inside == alias > cleared


BODIES = {  # what is no request at all
    "empty": b"", "deep": b"[" * 100000, "deep_object": b'{"a":' * 100 + b"1" + b"}" * 100, "not_an_object": b"[]", "duplicate": b'{"messages":[],"messages":[]}',
    "duplicate_inside": b'{"messages":[{"role":"user","role":"user"}]}', "long_number": b'{"seed":' + b"9" * 400 + b"}", "infinite": b'{"temperature":1e999}',
    "nan": b'{"temperature":NaN}', "trailing": b'{"messages":[]} x', "bom": b'\xef\xbb\xbf{"messages":[]}', "utf16": '{"messages":[]}'.encode("utf-16"),
    "lone_surrogate": b'{"user":"\\ud800"}', "overlong": b'{"user":"\xc0\xaf"}', "bad_utf8": b'{"user":"\xff"}', "nul": b'{"user":"a\\u0000"}',
    "int64": b'{"seed":9223372036854775808}', "many_values": b'{"x":[' + b"0," * 1100000 + b"0]}", "cut": b'{"messages":[{"role":"us', "raw_nul": b'{"a":"\0"}',
    "million_keys": b"{" + b",".join(b'"%d":1' % i for i in range(1100000)) + b"}",
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_is_no_json_object_is_refused(server, name):
    reply = server.request("POST", "/v1/chat/completions", BODIES[name])
    assert reply.status == 400 and reply.error["type"] == "invalid_request_error" and reply.error["message"]


def test_depth_64_is_read_and_65_is_not(server):
    for depth, status in ((64, 200), (65, 400)):
        inner = b"[" * (depth - 1) + b"]" * (depth - 1)
        body = json.dumps({"messages": ASK, "max_tokens": 1}).encode()[:-1] + b',"x":' + inner + b"}"
        assert server.request("POST", "/v1/chat/completions", body).status == status


def test_long_texts_are_refused_in_bounded_time(server):
    for text in ("Z" * 131072, " " * (1 << 20), "\u0301" * (1 << 19), "👩\u200d👩\u200d👧" * 50000, "\u202e" * 100000, "a b " * (1 << 20)):
        reply = server.chat(messages=[{"role": "user", "content": text}])
        assert reply.status == 400 and reply.error["code"] == "context_length_exceeded" and "8192" in reply.error["message"]
        assert reply.error["param"] == "messages"
    reply = server.chat(messages=[{"role": "user", "content": "Hi"}] * 100000)
    assert reply.status == 400 and reply.error["code"] == "context_length_exceeded"


def test_too_long_a_prompt_is_refused_before_a_stream_begins(server):
    reply = server.chat(messages=[{"role": "user", "content": "word " * 9000}], stream=True)
    assert reply.status == 400 and reply.error["code"] == "context_length_exceeded"


def test_what_fits_exactly_is_answered_with_one_token(start):
    server = start("--context", 64)
    for n in range(1, 80):
        reply = server.chat(messages=[{"role": "user", "content": "a" * 3 * n}])
        if reply.status == 400:
            break
        usage = reply.json["usage"]
        assert usage["prompt_tokens"] < 64 and usage["total_tokens"] <= 64
    assert reply.error["code"] == "context_length_exceeded" and n > 5


def test_defaults_come_from_the_models_file(start):
    server = start("--default-max-new", 7)
    sampled = {json.dumps(server.chat(temperature=None, messages=[{"role": "user", "content": "Tell me a short story."}]).json["choices"]) for _ in range(6)}
    assert len(sampled) > 1  # generation_config.json says temperature 1
    reply = server.chat().json
    assert reply["usage"]["completion_tokens"] == 7 and reply["choices"][0]["finish_reason"] == "length"


def test_an_answer_that_looks_like_a_call_stays_text_without_tools(start, tmp_path, server):
    """The model is made to say a call: with tools it is one, without it is content."""
    ids = json.loads(subprocess.run([HEARTH, "tokenize", "--json", "--model", str(ROOT / "models/kindling")], input=json.dumps(
        ["no</think>Well <tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>"]), capture_output=True, text=True, check=True).stdout)[0]
    script = tmp_path / "script.json"
    script.write_text(json.dumps(ids))
    scripted = start("--script", script)
    plain = scripted.chat().json["choices"][0]
    assert plain["message"]["content"].startswith("Well <tool_call>get_weather<arg_key>city") and "tool_calls" not in plain["message"]
    assert plain["message"]["reasoning_content"] == "no" and plain["finish_reason"] == "stop"
    choice = scripted.chat(tools=TOOLS).json["choices"][0]
    assert choice["message"]["content"].strip() == "Well" and choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city":"Oslo"}'} or \
        json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"city": "Oslo"}
    # Cut inside the call: half a call, and no finish_reason that claims a whole one.
    cut = scripted.chat(tools=TOOLS, max_tokens=len(ids) - 3).json["choices"][0]
    assert cut["finish_reason"] == "length"
    # A stop string is held back across tokens and does not reach over the call.
    assert scripted.chat(tools=TOOLS, stop=["ell"]).json["choices"][0]["message"]["content"] == "W"
    streamed = events(scripted.chat(stream=True, tools=TOOLS).body)
    assert [e["choices"][0]["finish_reason"] for e in streamed[:-1]][-1] == "tool_calls" and streamed[-1] == "[DONE]"
