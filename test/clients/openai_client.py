"""openai_client.py - the openai package against http.py: models, completions, chats, whole and as they come.

usage: python3 test/clients/openai_client.py BASE_URL CHAT_URL WANT     WANT: what dflash-generate writes, as
       text, for the prompt "def f(n):\n" and 24 tokens. Exit status 77 where the package is not installed.
"""
import http.client
import sys
import urllib.parse

try:
    import openai
except ImportError:
    print("the openai package is not installed")
    sys.exit(77)

want = open(sys.argv[3], newline="").read()
client, chats = (openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) for url in sys.argv[1:3])
PROMPT = "def f(n):\n"


def check(what, good, *shown):
    if not good:
        print(f"{what}: {shown}")
        sys.exit(1)


models = client.models.list().data
check("models", len(models) == 1 and models[0].id == "own", models)
plain = client.completions.create(model="any", prompt=PROMPT, max_tokens=24, temperature=0)
check("completion", plain.choices[0].text == want and plain.choices[0].finish_reason == "length", plain, want)
u = plain.usage
check("usage", u.completion_tokens == 24 and u.total_tokens == u.prompt_tokens + 24, u)
check("drafts", u.drafted_tokens >= u.accepted_tokens > 0
      and u.completion_tokens_details.accepted_prediction_tokens == u.accepted_tokens, u)
check("last use", client.models.list().data[0].last_used_ms > 1.6e12)
check("one model", client.models.retrieve("any").id == "own")

pieces, last = [], None
for event in client.completions.create(model="x", prompt=PROMPT, max_tokens=24, stream=True, stream_options={"include_usage": True}):
    if event.choices:
        pieces.append(event.choices[0].text)
    last = event
check("stream", "".join(pieces) == want and last.usage.completion_tokens == 24 and len(pieces) > 3, pieces, want)

# a stop text is not in the answer, whole or in pieces
stop = want[9:13]
cut = client.completions.create(model="x", prompt=PROMPT, max_tokens=24, stop=stop).choices[0]
check("stop", cut.text == want[:want.find(stop)] and cut.finish_reason == "stop", cut)
pieces = [e.choices[0].text for e in client.completions.create(model="x", prompt=PROMPT, max_tokens=24, stop=[stop], stream=True)]
check("stop in a stream", "".join(pieces) == cut.text, pieces)

sampled = [client.completions.create(model="x", prompt=PROMPT, max_tokens=12, temperature=1.5, seed=s, extra_body={"top_k": 50}).choices[0].text
           for s in (1, 1, 2)]
check("seeds", sampled[0] == sampled[1] != sampled[2], sampled)

# chats: every role, a thought of the model's, thinking or not
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": "Ho", "reasoning_content": "?"}, {"role": "user", "content": "f"}]
sizes = {}
for think in (None, True, False):
    extra = {} if think is None else {"chat_template_kwargs": {"enable_thinking": think}}
    answer = chats.chat.completions.create(model="any", messages=CHAT, max_completion_tokens=8, extra_body=extra)
    sizes[think] = answer.usage.prompt_tokens
    m = answer.choices[0].message
    check("chat", m.role == "assistant" and answer.usage.completion_tokens == 8 and m.content is not None, answer)
check("thinking", sizes[None] == sizes[True] < sizes[False], sizes)
check("enable_thinking", chats.chat.completions.create(model="any", messages=CHAT, max_tokens=2, extra_body={"enable_thinking": False}).usage.prompt_tokens == sizes[False])
developer = [dict(CHAT[0], role="developer")] + CHAT[1:]
check("developer", chats.chat.completions.create(model="any", messages=developer, max_tokens=2).usage.prompt_tokens == sizes[None])
tool = [{"role": "user", "content": "f"}, {"role": "assistant", "content": None, "tool_calls": [
    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "1", "content": "9"}]
check("tool", chats.chat.completions.create(model="any", messages=tool, max_tokens=2).usage.completion_tokens == 2)
whole = chats.chat.completions.create(model="any", messages=CHAT, max_tokens=20, temperature=0).choices[0].message
said, thought, role = "", "", None
for event in chats.chat.completions.create(model="any", messages=CHAT, max_tokens=20, temperature=0, stream=True):
    d = event.choices[0].delta
    said, thought, role = said + (d.content or ""), thought + (getattr(d, "reasoning_content", None) or ""), role or d.role
check("chat stream", said == whole.content and thought == (getattr(whole, "reasoning_content", None) or "") and role == "assistant", said, whole)

# kept beginnings, and how not to use them
ids = [5 + i % 90 for i in range(200)]
for cached, extra in ((0, {}), (192, {}), (0, {"cache_prompt": False})):
    u = client.completions.create(model="x", prompt=ids, max_tokens=2, extra_body=extra).usage
    check("cache", u.prompt_tokens == 200 and u.prompt_tokens_details.cached_tokens == cached, cached, u)


def refused(status, code=None, **kw):
    try:
        chats.chat.completions.create(**{"model": "x", "messages": CHAT, "max_tokens": 2, **kw})
    except openai.APIStatusError as e:
        check("refused", e.status_code == status and (code is None or e.code == code), kw, e)
    else:
        check("refused", False, kw)


refused(400, "unknown_parameter", extra_body={"no_such": 1})
refused(400, "unsupported_parameter", n=2)
refused(400, "unsupported_parameter", logprobs=True)
refused(400, "context_length_exceeded", max_tokens=100000)
refused(400, temperature=-1)
refused(400, messages=[])
refused(400, messages=[{"role": "nobody", "content": "x"}])
refused(400, messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])
refused(400, extra_body={"chat_template_kwargs": {"other": 1}})

refused(400, messages=[{"role": [], "content": "x"}])
refused(400, messages=[{"role": "user", "content": [{"type": "text", "text": 5}]}])
refused(400, extra_body={"chat_template_kwargs": [["x"]]})
refused(400, extra_body={"stream_options": 5})
refused(400, stop=5)
refused(400, stop=[5])
refused(400, tools=[{"type": "function", "function": {"name": "f"}}])
refused(400, temperature="warm")
refused(400, max_tokens=1.5)

# what no package sends: an answer all the same, on a connection that stays
at = urllib.parse.urlsplit(sys.argv[1])
raw = http.client.HTTPConnection(at.hostname, at.port, timeout=120)
for body in (b'{"prompt":"\\ud800","max_tokens":2}', b"[]", b"{", b"[" * 5000 + b"]" * 5000, b'{"prompt":"x","max_tokens":2,"stream_options":[]}'):
    raw.request("POST", at.path + "/completions", body)
    answer = raw.getresponse()
    check("raw", answer.status == (200 if b"stream_options" in body else 400) and answer.read(), body[:40], answer.status)

# a stream that is closed ends there: the next one does not wait for it
long = client.completions.create(model="x", prompt=PROMPT, max_tokens=600, stream=True, extra_body={"ignore_eos": True})
next(iter(long))
long.close()
check("after a closed stream", client.completions.create(model="x", prompt=PROMPT, max_tokens=3).usage.completion_tokens == 3)
print("good")
