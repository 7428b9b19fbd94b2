/* dflash-tokenize - text to a token stream and back, by the tokenizer inside a GGUF. Both ways as a stream:
 * what arrives is worked on at once, and what is ready is written before the next read waits. */
#include <string.h>
#include <unistd.h>
#include "../../common/file/gguf.h"
#include "../../common/base/io.h"
#include "../../common/base/mem.h"
#include "../../common/base/text.h"
#include "../../common/token/tokenizer.h"
#include "../cli.h"
#include "chat.h"

#define N_IN 65536

static const char *model, *output, *template_name, *behind, *tools_path;
static int32_t threads;
static bool decode, special, no_normalize, no_bos, force, pieces;
static bool chat, think, no_think, no_prompt;
static struct chat_input input;
static struct chat_options chat_options = {.think = -1, .generation_prompt = true};

static const struct cli_flag flags[] = {
    {"-m", CLI_STR, &model, "MODEL.gguf", "the model, or any GGUF that carries its tokenizer", 0, 0},
    {"--decode", CLI_FLAG, &decode, NULL, "ids to text", 0, 0},
    {"--pieces", CLI_FLAG, &pieces, NULL, "a line of text for every id: the id and its piece", 0, 0},
    {"--special", CLI_FLAG, &special, NULL,
     "control tokens as text: recognised in the input, written in the output", 0, 0},
    {"--no-normalize", CLI_FLAG, &no_normalize, NULL, "take the text as it is, whatever the model asks for",
     0, 0},
    {"--no-bos", CLI_FLAG, &no_bos, NULL, "do not begin with the bos token, even if the model asks for it", 0,
     0},
    {"--chat", CLI_FLAG, &chat, NULL, "JSON lines of role and content, put in the model's chat template", 0,
     0},
    {"--chat-tools", CLI_STR, &tools_path, "FILE", "declarations of tools, a JSON array", 0, 0},
    {"--chat-template", CLI_STR, &template_name, "NAME", "a template by its name, whatever the model carries",
     0, 0},
    {"--no-generation-prompt", CLI_FLAG, &no_prompt, NULL,
     "end with the last message, not with the beginning of an answer", 0, 0},
    {"--continue", CLI_STR, &behind, "HOW",
     "the messages stand behind an answer: ended (by its last token), cut (before it), or the file of a "
     "state",
     0, 0},
    {"--chat-text", CLI_FLAG, &input.text, NULL, "stdin is the words of one message of the user's", 0, 0},
    {"--chat-system", CLI_STR, &input.system, "TEXT", "a system message before the others", 0, 0},
    {"--think", CLI_FLAG, &think, NULL, "ask the model to think before it answers", 0, 0},
    {"--no-think", CLI_FLAG, &no_think, NULL, "ask it not to", 0, 0},
    {"--chat-date", CLI_STR, &chat_options.date, "TEXT",
     "the day in a template that names one, as '26 Jul 2024'", 0, 0},
    {"-o", CLI_STR, &output, "FILE", "write to FILE instead of stdout", 0, 0},
    {"--force", CLI_FLAG, &force, NULL, "replace an existing FILE", 0, 0},
    {"--threads", CLI_I32, &threads, "N", "as in every program; a tokenizer has one", 0, CLI_MAX_THREADS},
    {0},
};

static struct cli cli = {
    .tool = "tokenize",
    .synopsis = "-m MODEL.gguf [--special] [--no-normalize] [--no-bos] < TEXT > TOKENS\n"
                "-m MODEL.gguf --chat [--continue HOW] [--chat-template NAME] [--think | --no-think] < "
                "MESSAGES > TOKENS\n"
                "-m MODEL.gguf --decode [--special] < TOKENS > TEXT\n"
                "-m MODEL.gguf --pieces [--chat | --decode] < TEXT|MESSAGES|TOKENS > LINES",
    .summary = "Turn text into a stream of little-endian int32 token ids, and such a stream into text.",
    .flags = flags,
};

struct sink {
    struct io_out out;
    const struct tokenizer *t;
    int32_t bos; /* still to be written before the first id; -1: none */
    uint64_t n_ids;
};

/* Ids as they are, or with their pieces, a line each: "  785 \"The\"". */
static int put(struct sink *s, const int32_t *ids, size_t n, struct err *e)
{
    if (!pieces) return n ? io_write_tokens(&s->out, ids, n, e) : 0;
    for (size_t i = 0; i < n; i++) {
        char line[4 * 256 + 64], quoted[4 * 256 + 8];
        size_t k;
        bool written;
        if (ids[i] < 0 || ids[i] >= tok_n_vocab(s->t))
            return err_set(e, ERR_FORMAT,
                           "token %llu of the stream: id %d is outside the vocabulary (expected 0 to %d)",
                           (unsigned long long)(s->n_ids - n + i), ids[i], tok_n_vocab(s->t) - 1);
        const uint8_t *p = tok_piece(s->t, ids[i], &k, &written);
        const int used =
            snprintf(line, sizeof line, "%7d %s%s\n", ids[i],
                     text_quote(quoted, sizeof quoted, (const char *)p, k, 256), written ? "" : " control");
        if (io_out_write(&s->out, line, (size_t)used, e)) return -1;
    }
    return 0;
}

static int put_ids(void *ctx, const int32_t *ids, size_t n, struct err *e)
{
    struct sink *s = ctx;
    int32_t bos = s->bos;
    s->bos = -1;
    if (bos >= 0 && !(n && ids[0] == bos)) { /* a text that begins with it has it already */
        s->n_ids++;
        if (put(s, &bos, 1, e)) return -1;
    }
    s->n_ids += n;
    return put(s, ids, n, e);
}

static int put_bytes(void *ctx, const void *bytes, size_t n, struct err *e)
{
    struct sink *s = ctx;
    return io_out_write(&s->out, bytes, n, e);
}

static int run_encode(struct sink *s, const struct tokenizer *t, uint8_t *in, struct err *e)
{
    struct tok_encoder *x;
    int rc = -1;
    size_t got;
    if (tok_encoder_new(&x, t, special, !no_normalize, e)) return -1;
    do {
        if (io_read_some(STDIN_FILENO, "stdin", in, N_IN, &got, e) ||
            tok_encode(x, in, got, got == 0, put_ids, s, e) ||
            (got == 0 && s->bos >= 0 && put_ids(s, NULL, 0, e)) || io_out_flush(&s->out, e))
            goto done;
    } while (got);
    rc = 0;
done:
    tok_encoder_free(x);
    return rc;
}

/* The ids in in[0 .. n), of which a last piece of 0 to 3 bytes stays. */
static int decode_some(struct sink *s, struct tok_decoder *x, uint8_t *in, size_t *n, struct err *e)
{
    int32_t ids[1024];
    size_t at = 0;
    while (*n - at >= 4) {
        size_t k = (*n - at) / 4 < 1024 ? (*n - at) / 4 : 1024;
        for (size_t i = 0; i < k; i++) {
            const uint8_t *p = in + at + 4 * i;
            ids[i] =
                (int32_t)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        }
        s->n_ids += k;
        if (pieces ? put(s, ids, k, e) : tok_decode(x, ids, k, false, put_bytes, s, e)) return -1;
        at += 4 * k;
    }
    memmove(in, in + at, *n - at);
    *n -= at;
    return 0;
}

static int run_decode(struct sink *s, const struct tokenizer *t, uint8_t *in, struct err *e)
{
    struct tok_decoder *x;
    int rc = -1;
    size_t n = 0, got, n_head = 0;
    uint8_t head[64]; /* what the stream began with, if it turns out to be none */
    if (tok_decoder_new(&x, t, special, e)) return -1;
    do {
        if (io_read_some(STDIN_FILENO, "stdin", in + n, N_IN - n, &got, e)) goto done;
        if (!n_head) memcpy(head, in, n_head = got < sizeof head ? got : sizeof head);
        n += got;
        if (decode_some(s, x, in, &n, e) || (got == 0 && tok_decode(x, NULL, 0, true, put_bytes, s, e)) ||
            io_out_flush(&s->out, e))
            goto done;
    } while (got);
    if (n)
        err_set(e, ERR_FORMAT, "stdin: %zu bytes after the last id (expected a multiple of 4 bytes)", n);
    else
        rc = 0;
done:
    if (rc && e->code == ERR_FORMAT) io_hint_tokens(head, n_head, e);
    if (rc && io_out_flush(&s->out, NULL)) rc = -1; /* the text before a bad id is good */
    tok_decoder_free(x);
    return rc;
}

static int run_chat(struct sink *s, const struct gguf *g, const struct tokenizer *t, struct err *e)
{
    const struct chat_template *c;
    if (chat_choose(&c, g, t, template_name, &chat_options, &cli, e)) return -1;
    if (behind && chat_options.behind == CHAT_BEGINS &&
        chat_behind_state(behind, c, t, &chat_options.behind, e))
        return -1;
    json_t *tools = NULL;
    if (tools_path && chat_read_tools(&tools, tools_path, e)) {
        json_decref(tools);
        return -1;
    }
    chat_options.tools = tools;
    /* The template alone says whether the text begins with a bos. */
    s->bos = chat_bos(c) && !no_bos && !behind ? tok_bos(t) : -1;
    int rc =
        chat_encode(c, t, &chat_options, &input, !no_normalize, put_ids, s, e) || io_out_flush(&s->out, e)
            ? -1
            : 0;
    json_decref(tools);
    return rc;
}

static void check_flags(void)
{
    if (!model) cli_usage_error(&cli, "no model (expected -m MODEL.gguf)");
    if (decode && no_normalize) cli_usage_error(&cli, "--no-normalize is for text, not for --decode");
    if (decode && no_bos) cli_usage_error(&cli, "--no-bos is for text, not for --decode");
    if (decode && pieces && special)
        cli_usage_error(&cli, "--special does not go with --pieces: every id has its line");
    if (chat && decode) cli_usage_error(&cli, "--chat is for text, not for --decode");
    if (chat && special)
        cli_usage_error(&cli, "--special: what is said in a chat never makes a control token");
    if (!chat && (template_name || behind || tools_path || input.text || input.system || no_prompt || think ||
                  no_think || chat_options.date))
        cli_usage_error(&cli, "%s is for --chat",
                        template_name  ? "--chat-template"
                        : behind       ? "--continue"
                        : input.text   ? "--chat-text"
                        : input.system ? "--chat-system"
                        : no_prompt    ? "--no-generation-prompt"
                        : think        ? "--think"
                        : no_think     ? "--no-think"
                                       : "--chat-date");
    if (think && no_think) cli_usage_error(&cli, "--think and --no-think exclude each other");
    if (think || no_think) chat_options.think = think;
    chat_options.generation_prompt = !no_prompt;
    if (behind && (cli_is_stdin(behind) || !*behind))
        cli_usage_error(&cli, "--continue: expected ended, cut or the file of a state, got '%s'", behind);
    if (behind && input.system)
        cli_usage_error(&cli, "--chat-system begins a chat, --continue goes on with one");
    if (behind && !strcmp(behind, "ended")) chat_options.behind = CHAT_BEHIND_TURN;
    if (behind && !strcmp(behind, "cut")) chat_options.behind = CHAT_BEHIND_CUT;
}

static int run(struct err *e)
{
    struct sink s = {.bos = -1};
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    uint8_t *in = NULL;
    int rc = -1;
    if (gguf_open(&g, model, e) || tok_open(&t, g, e) ||
        io_out_open(&s.out, output, force, (const char *const[]){model, "-"}, 2, e))
        goto done;
    s.t = t;
    if (!decode && !no_bos && tok_add_bos(t)) s.bos = tok_bos(t);
    in = mem_alloc(N_IN);
    if (!in) {
        err_set(e, ERR_IO, "out of memory (input)");
        goto done;
    }
    double start = cli_seconds();
    if (decode ? run_decode(&s, t, in, e) : chat ? run_chat(&s, g, t, e) : run_encode(&s, t, in, e))
        goto done;
    uint64_t bytes = s.out.written;
    if (io_out_commit(&s.out, e)) goto done;
    cli_detail(&cli, "%llu tokens, %llu bytes out, %.3f s", (unsigned long long)s.n_ids,
               (unsigned long long)bytes, cli_seconds() - start);
    rc = 0;
done:
    io_out_abort(&s.out);
    mem_free(in);
    tok_close(t);
    gguf_close(g);
    return rc;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    io_signals_install();
    cli_parse(&cli, argc, argv);
    check_flags();
    if (decode)
        cli_no_binary_tty(&cli, STDIN_FILENO, "a token stream");
    else if (!pieces)
        cli_no_binary_out(&cli, output, "a token stream");
    if (run(&e)) return cli_fail(&cli, &e);
    return cli_close_stdout(&cli);
}
