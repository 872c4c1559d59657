/* SPDX-License-Identifier: Apache-2.0 */
/* Programs in Hocket's JSON: what is written is read back, byte by byte; what is wrong is refused with its place. */
#include "../../src/formats/file.h"
#include "../../src/formats/jansson_abi.h"
#include "../../src/formats/json_tree.h"
#include "../support/prove_algorithms.h"
#include "../support/randprog.h" /* random numbers */
#include "../support/suite.h"

#if __has_include(<jansson.h>)
#include <jansson.h>
#define SAME(type, name, arguments)                                                                                    \
  _Static_assert(__builtin_types_compatible_p(__typeof__(name), type arguments), #name);
HK_JANSSON_CALLS(SAME)
_Static_assert(__builtin_types_compatible_p(__typeof__(json_loadb),
                                            json_t *(const char *, size_t, size_t, json_error_t *)),
               "json_loadb");
_Static_assert(sizeof(hk_jansson_error) == sizeof(json_error_t) &&
                   offsetof(hk_jansson_error, text) == offsetof(json_error_t, text) &&
                   offsetof(hk_jansson_error, column) == offsetof(json_error_t, column),
               "json_error_t");
_Static_assert(sizeof(hk_jansson_head) == sizeof(json_t) &&
                   offsetof(hk_jansson_head, references) == offsetof(json_t, refcount),
               "json_t");
_Static_assert((int)HK_JANSSON_NULL == (int)JSON_NULL && (int)HK_JANSSON_STRING == (int)JSON_STRING &&
                   (int)HK_JANSSON_TRUE == (int)JSON_TRUE && HK_JANSSON_REJECT_DUPLICATES == JSON_REJECT_DUPLICATES,
               "constants");
#endif

/* The programs of all ranks as a file. */
static char *written(const hk_program_set *s, void (*write)(const hk_program_set *, FILE *)) {
  char *text = NULL;
  size_t size;
  FILE *f = open_memstream(&text, &size);
  ck_assert_ptr_nonnull(f);
  write(s, f);
  fclose(f);
  return text;
}

static hk_program_set built(const hk_algorithm *a, hk_coll coll, int nranks, int root) {
  hk_program_set s = {.nranks = nranks, .in_place = true, .out_of_place = true};
  s.programs = calloc((size_t)nranks, sizeof(hk_program *));
  for (int r = 0; r < nranks; r++)
    ck_assert_int_eq(
        hk_algorithm_build(a, &(hk_build){.coll = coll, .rank = r, .nranks = nranks, .root = root}, &s.programs[r]),
        HK_OK);
  return s;
}

/* Reads the text, expects the set's programs, and frees the text. */
static void same(char *text, const hk_program_set *s, const char *what) {
  hk_program_file f;
  ck_assert_msg(hk_program_file_read(&f, "file", text, 8) == HK_OK, "%s of %d: %s", what, s->nranks, hk_last_error());
  ck_assert_int_eq(f.nsets, 1);
  ck_assert_int_eq(f.sets->nranks, s->nranks);
  for (int r = 0; r < s->nranks; r++) {
    ck_assert_uint_eq(f.sets->programs[r]->bytes, s->programs[r]->bytes);
    ck_assert_msg(!memcmp(f.sets->programs[r], s->programs[r], s->programs[r]->bytes), "%s of %d, rank %d differs",
                  what, s->nranks, r);
  }
  hk_program_file_free(&f);
  free(text);
}

/* Built-in programs -> text -> programs -> JSON -> programs. */
TEST_LOOP(round_trip, prove_count()) {
  static const int counts[] = {1, 2, 3, 4, 7, 8, 13};
  const hk_algorithm *a = hk_algorithms[_i];
  for (size_t k = 0; k < HK_ARRAY_LENGTH(counts); k++) {
    const int n = counts[k];
    const hk_machine m = prove_machine(n);
    for (int c = 0; c < HK_COLL_COUNT; c++) {
      if (!hk_algorithm_supports(a, &m.team, (hk_coll)c)) continue;
      hk_program_set s = built(a, (hk_coll)c, n, hk_coll_has_root((hk_coll)c) ? n - 1 : 0);
      same(written(&s, hk_program_set_text), &s, a->name);
      same(written(&s, hk_program_set_json), &s, a->name);
      hk_program_set_free(&s);
    }
  }
}

/* Copies of lanes use channels from k * span on, which the two ends of a link must agree on. */
TEST(spans) {
  char *text = strdup("Broadcast chain, rank 0 of 3, root 0, message split into 1, scratch 0\n"
                      "lane 0\n  links: 0=send(1@2)\n 0: out[b0], send(1@2)[b0] <- in[b0]\n"
                      "Broadcast chain, rank 1 of 3, root 0, message split into 1, scratch 0\n"
                      "lane 0\n  links: 0=recv(0@2) 1=send(2)\n 0: out[b0], send(2)[b0] <- recv(0@2)[b0]\n"
                      "Broadcast chain, rank 2 of 3, root 0, message split into 1, scratch 0\n"
                      "lane 0\n  links: 0=recv(1)\n 0: out[b0] <- recv(1)[b0]\n");
  hk_program_file f;
  ck_assert_msg(hk_program_file_read(&f, "file", text, 8) == HK_OK, "%s", hk_last_error());
  for (int r = 0; r < 3; r++) ck_assert_uint_eq(f.sets->programs[r]->traits.span, 3);
  hk_program_file_free(&f);
  free(text);
}

/* Lines that start with # are no part of a program, and lines may end as on Windows. */
TEST(comments) {
  hk_program_set s = built(hk_algorithm_by_name("ring"), HK_ALLGATHER, 3, 0);
  char *text = written(&s, hk_program_set_text), *marked = NULL;
  size_t size;
  FILE *f = open_memstream(&marked, &size);
  ck_assert_ptr_nonnull(f);
  for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
    fprintf(f, "#lane 9\r\n%.*s\r\n", (int)strcspn(line, "\n"), line);
  fclose(f);
  same(marked, &s, "with comments");
  free(text);
  hk_program_set_free(&s);
}

static hk_program_set ring(int n) { return built(hk_algorithm_by_name("ring"), HK_ALLREDUCE, n, 0); }

TEST(calls) {
  hk_program_set s = ring(3);
  hk_program_file f;
  s.in_place = false;
  s.least = 8;
  s.most = 1 << 20;
  char *text = written(&s, hk_program_set_json);
  ck_assert_int_eq(hk_program_file_read(&f, "file", text, 8), HK_OK);
  ck_assert(!f.sets->in_place && f.sets->out_of_place);
  ck_assert_uint_eq(f.sets->least, 8);
  ck_assert_uint_eq(f.sets->most, 1 << 20);
  ck_assert_int_eq(hk_program_set_prove(f.sets, "file", 8), HK_OK);
  hk_program_file_free(&f);
  /* A list alone is a file, too, and may hold several sets. */
  char *list = strchr(text, '['), *two = malloc(2 * strlen(text));
  list[strlen(list) - 2] = 0; /* the object's end */
  same(strdup(list), &s, "a list");
  list[strlen(list) - 1] = 0;
  sprintf(two, "%s,%s]", list, list + 1);
  ck_assert_msg(hk_program_file_read(&f, "file", two, 8) == HK_OK, "%s", hk_last_error());
  ck_assert_int_eq(f.nsets, 2);
  hk_program_file_free(&f);
  free(two);
  free(text);
  hk_program_set_free(&s);
}

/* ---- what is wrong ---- */

static const struct {
  const char *what, *by, *error; /* what: "" the whole file */
} faults[] = {
    {"", "{", "file:1:1: not well-formed JSON: "},
    {"", "{\n \"hocket\": 1, x}", "file:2:"},
    {"", "{\"hocket\":1,\"hocket\":1}", "duplicate"},
    {"", "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "file:1:33: values are nested deeper than 32"},
    {"", "{\"hocket\":1}", "file: \"programs\" is missing"},
    {"", "[]", "file: this holds no program"},
    {"", "[7]", "file: [0]: this is not an object {}"},
    {"\"hocket\":1", "\"hocket\":2", "file: hocket: 2 is not from 1 to 1"},
    {"\"hocket\":1", "\"hocket\":1,\"size\":1", "file: the key \"size\" is unknown; known are hocket programs"},
    {"\"hocket\":1", "\"hocket\":1,\"min_bytes\":-1", "min_bytes: -1 is not from 0"},
    {"\"collective\":\"AllReduce\"", "\"collective\":\"AllSum\"", "file: programs[0]: \"AllSum\" is no collective"},
    {"\"algorithm\":\"ring\"", "\"algorithm\":\"a ring\"", "programs[0]: \"algorithm\" is not 1 to 23 letters"},
    {"\"rank\":1", "\"rank\":0", "file: programs[0]: the program of rank 1 of 3 is missing"},
    {"\"rank\":1", "\"rank\":524288", "programs[1].rank: 524288 is not from 0 to 524287"},
    {"\"ranks\":3", "\"ranks\":0", "programs[0]: a collective of 0 ranks"},
    {"\"split\":true", "\"split\":false", "\"split\" is false, and messages of AllReduce are split"},
    {"\"scratch\":0", "\"scratch\":\"0\"", "programs[0].blocks.scratch: this is not a whole number"},
    {"\"in\":3", "\"in\":2", "programs[0].blocks: a message that is split has as many blocks in as out"},
    {"\"kind\":\"recv\"", "\"kind\":\"get\"", "programs[0].links[1]: \"kind\" is \"get\""},
    {"\"lane\":0", "\"lane\":1", "programs[0].links[0].lane: 1 is not from 0 to 0"},
    {"\"space\":\"send\",\"link\":0", "\"space\":\"send\",\"link\":1",
     "programs[0].lanes[0][0].to[0]: link 1 is not of the kind send, or does not exist"},
    {"\"space\":\"send\",\"link\":0", "\"space\":\"send\"", "programs[0].lanes[0][0].to[0]: \"link\" is missing"},
    {"\"space\":\"in\"", "\"space\":\"ins\"", "programs[0].lanes[0][0].from[0]: \"space\" is \"ins\""},
    {"\"from\":", "\"form\":", "programs[0].lanes[0][0]: \"from\" is missing"},
    {"\"block\":", "\"final\":true,\"block\":", "programs[0].lanes[0][0].to[0]: the key \"final\" is unknown"},
};

TEST_LOOP(refused, HK_ARRAY_LENGTH(faults)) {
  hk_program_set s = ring(3);
  hk_program_file f;
  char *text = written(&s, hk_program_set_json), *bad = malloc(strlen(text) + strlen(faults[_i].by) + 1);
  char *at = strstr(text, faults[_i].what);
  ck_assert_ptr_nonnull(at);
  sprintf(bad, "%.*s%s%s", (int)(at - text), text, faults[_i].by, *faults[_i].what ? at + strlen(faults[_i].what) : "");
  ck_assert_int_eq(hk_program_file_read(&f, "file", bad, 8), HK_ERR_ARGUMENT);
  ck_assert_msg(strstr(hk_last_error(), faults[_i].error) != NULL, "said: %s", hk_last_error());
  hk_program_file_free(&f);
  free(bad);
  free(text);
  hk_program_set_free(&s);
}

/* The text between quotes is not counted, whatever it holds. */
TEST(bounds) {
  hk_json_tree t;
  const char *text = "{\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\\\": \"\\\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\"}";
  ck_assert_msg(hk_json_tree_parse(&t, "file", text) == HK_OK, "%s", hk_last_error());
  hk_json_tree_free(&t);
  char *many = malloc((size_t)2 * HK_JSON_TREE_NODES + 8);
  many[0] = '[';
  for (size_t i = 0; i <= HK_JSON_TREE_NODES; i++) memcpy(many + 1 + 2 * i, "0,", 2);
  strcpy(many + 1 + 2 * (size_t)HK_JSON_TREE_NODES, "0]");
  ck_assert_int_eq(hk_json_tree_parse(&t, "file", many), HK_ERR_ARGUMENT);
  ck_assert_msg(strstr(hk_last_error(), "more than 4194304 values") != NULL, "%s", hk_last_error());
  hk_json_tree_free(&t);
  free(many);
}

int main(void) {
  if (!hk_json_tree_available()) {
    puts("SKIP: jansson is not installed (libjansson4), so that no JSON is read");
    return 77;
  }
  return suite_main("program_json", .timeout = 60);
}
