/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes files of programs in Hocket's JSON: {"hocket": 1, "programs": [...]}, where a program is what
 * hk_program_json writes. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "../program/program_internal.h"
#include "formats.h"
#include "json_tree.h"

/* False: no memory, which is an error of the tree. */
#define JSON_ROOM(p, field, node) (HK_DRAFT_ROOM(p, field) || hk_json_no_memory((node)->tree))

static uint32_t json_count(const hk_json_node *object, const char *key) {
  long long v = 0;
  hk_json_get_whole(object, key, true, 0, HK_BLOCKS_MOST, &v);
  return (uint32_t)v;
}

/* The number of a word in a list, or -1, which is an error. */
static int json_word(const hk_json_node *object, const char *key, const char *const *words, int n) {
  const char *text = hk_json_get_text(object, key, true);
  for (int i = 0; text && i < n; i++)
    if (!strcmp(text, words[i])) return i;
  if (text) hk_json_say(object, "\"%s\" is \"%.40s\", which has no meaning there", key, text);
  return -1;
}

static void json_read_head(const hk_json_node *n, hk_program *h) {
  const char *coll = hk_json_get_text(n, "collective", true), *name = hk_json_get_text(n, "algorithm", true);
  const hk_coll c = coll ? hk_coll_by_name(coll, strlen(coll)) : HK_COLL_COUNT;
  bool split = false;
  hk_json_node blocks;
  if (c == HK_COLL_COUNT) {
    hk_json_say(n, "\"%.40s\" is no collective, such as AllReduce", coll ? coll : "");
    return;
  }
  if (name && *name && strlen(name) < sizeof h->algorithm && !name[strspn(name, HK_PROGRAM_NAME_CHARACTERS)])
    memcpy(h->algorithm, name, strlen(name));
  else
    hk_json_say(n, "\"algorithm\" is not 1 to %zu letters, digits, _-+.", sizeof h->algorithm - 1);
  h->coll = (uint16_t)c;
  h->partition = (uint16_t)hk_coll_partition(c);
  h->rank = (int)json_count(n, "rank");
  h->nranks = (int)json_count(n, "ranks");
  h->root = (int)json_count(n, "root");
  if (hk_json_get_boolean(n, "split", true, &split) && split != (h->partition == HK_PART_SPLIT))
    hk_json_say(n, "\"split\" is %s, and messages of %s are%s split", split ? "true" : "false", coll,
                split ? " not" : "");
  if (!hk_json_get(n, "blocks", HK_JSON_OBJECT, true, &blocks)) return;
  hk_json_only(&blocks, " in out scratch ");
  h->in_blocks = json_count(&blocks, "in");
  h->out_blocks = json_count(&blocks, "out");
  h->scratch_blocks = json_count(&blocks, "scratch");
  h->blocks = h->in_blocks > h->out_blocks ? h->in_blocks : h->out_blocks;
  if (split && h->in_blocks != h->out_blocks)
    hk_json_say(&blocks, "a message that is split has as many blocks in as out");
}

static bool json_read_links(const hk_json_node *n, hk_program_draft *p, size_t nlanes) {
  hk_json_node links, l;
  if (!hk_json_get(n, "links", HK_JSON_LIST, true, &links)) return false;
  const size_t count = hk_json_size(&links);
  if (count > HK_LINKS_MOST) hk_json_say(&links, "there are more than %d links", HK_LINKS_MOST);
  for (size_t i = 0; i < count && !n->tree->errors; i++) {
    long long lane = 0, channel = 0;
    if (!hk_json_at(&links, i, HK_JSON_OBJECT, &l)) return false;
    hk_json_only(&l, " kind peer lane channel ");
    const int kind = json_word(&l, "kind", hk_link_words, HK_LINK_KINDS);
    hk_json_get_whole(&l, "lane", true, 0, (long long)nlanes - 1, &lane);
    hk_json_get_whole(&l, "channel", true, 0, UINT8_MAX, &channel);
    if (kind < 0 || !JSON_ROOM(p, links, n)) return false;
    p->links[p->head.nlinks++] = (hk_link_need){
        .peer = json_count(&l, "peer"), .kind = (unsigned)kind, .lane = (uint8_t)lane, .channel = (uint8_t)channel};
  }
  return !n->tree->errors;
}

static bool json_read_operand(const hk_json_node *n, hk_program_draft *p) {
  hk_operand o = {0};
  long long stride = 0;
  bool step = false;
  const char *space = hk_json_get_text(n, "space", true);
  if (!space) return false;
  hk_json_only(n, " space link block stride step ");
  while (o.space < HK_LINK && strcmp(space, hk_space_words[o.space])) o.space++;
  if (o.space == HK_LINK) {
    const int kind = json_word(n, "space", hk_link_words, HK_LINK_KINDS);
    o.link = json_count(n, "link");
    if (kind < 0 || n->tree->errors) return false;
    if (o.link >= p->head.nlinks || p->links[o.link].kind != kind) {
      hk_json_say(n, "link %u is not of the kind %s, or does not exist", o.link, space);
      return false;
    }
  }
  o.block = json_count(n, "block");
  hk_json_get_whole(n, "stride", false, -HK_BLOCKS_MOST, HK_BLOCKS_MOST, &stride);
  hk_json_get_boolean(n, "step", false, &step);
  o.stride = stride;
  if (step) o.flags = HK_OPERAND_STEP;
  if (n->tree->errors || !JSON_ROOM(p, operands, n)) return false;
  p->operands[p->head.noperands++] = o;
  return true;
}

static bool json_read_operands(const hk_json_node *n, const char *key, hk_program_draft *p, uint16_t *count) {
  hk_json_node list, o;
  if (!hk_json_get(n, key, HK_JSON_LIST, true, &list)) return false;
  const size_t size = hk_json_size(&list);
  if (size > UINT16_MAX) {
    hk_json_say(&list, "there are more than %d operands", UINT16_MAX);
    return false;
  }
  for (size_t i = 0; i < size; i++)
    if (!hk_json_at(&list, i, HK_JSON_OBJECT, &o) || !json_read_operand(&o, p)) return false;
  *count = (uint16_t)size;
  return true;
}

static bool json_read_instr(const hk_json_node *n, hk_program_draft *p) {
  long long count = 0, body = 0;
  bool final = false, copy = false, in_switch = false;
  if (!JSON_ROOM(p, instrs, n)) return false;
  hk_instr *i = &p->instrs[p->head.ninstrs++];
  memset(i, 0, sizeof *i);
  if (hk_json_get_whole(n, "repeat", false, 0, INT32_MAX, &count)) {
    hk_json_get_whole(n, "body", true, 0, INT32_MAX, &body);
    *i = (hk_instr){.op = HK_OP_REPEAT, .repeat = {(uint32_t)count, (uint32_t)body}};
    return hk_json_only(n, " repeat body ") && !n->tree->errors;
  }
  const uint32_t first = p->head.noperands;
  if (!json_read_operands(n, "to", p, &i->ndst) || !json_read_operands(n, "from", p, &i->nsrc)) return false;
  hk_json_get_boolean(n, "final", false, &final);
  hk_json_get_boolean(n, "copy", false, &copy);
  hk_json_get_boolean(n, "in_switch", false, &in_switch);
  i->flags =
      (uint8_t)((final ? HK_INSTR_FINAL : 0) | (copy ? HK_INSTR_COPY : 0) | (in_switch ? HK_INSTR_IN_SWITCH : 0));
  hk_program_draft_move(p, i, first);
  return hk_json_only(n, " to from final copy in_switch ") && !n->tree->errors;
}

static bool json_read_lanes(const hk_json_node *lanes, hk_program_draft *p) {
  const size_t count = hk_json_size(lanes);
  hk_json_node lane, instr;
  for (size_t k = 0; k < count; k++) {
    if (!hk_json_at(lanes, k, HK_JSON_LIST, &lane) || !JSON_ROOM(p, lanes, lanes)) return false;
    const uint32_t n = (uint32_t)hk_json_size(&lane);
    p->lanes[p->head.nlanes++] = (hk_lane){.first = p->head.ninstrs, .count = n};
    for (uint32_t i = 0; i < n; i++)
      if (!hk_json_at(&lane, i, HK_JSON_OBJECT, &instr) || !json_read_instr(&instr, p)) return false;
  }
  return true;
}

/* *out stays NULL if there is an error in the tree. */
static hk_status json_read_program(const hk_json_node *n, hk_program **out) {
  hk_status rc = HK_OK;
  hk_program_draft p = {.lanes = NULL};
  hk_json_node lanes;
  hk_json_only(n, " collective algorithm rank ranks root split blocks links lanes ");
  json_read_head(n, &p.head);
  if (!hk_json_get(n, "lanes", HK_JSON_LIST, true, &lanes) || n->tree->errors) goto out;
  if (hk_json_size(&lanes) > UINT8_MAX) {
    hk_json_say(&lanes, "there are more than %d lanes", UINT8_MAX);
    goto out;
  }
  if (json_read_links(n, &p, hk_json_size(&lanes)) && json_read_lanes(&lanes, &p))
    rc = hk_program_draft_assemble(&p, out);
out:
  hk_program_draft_free(&p);
  return rc;
}

/* What the file says of all its programs, which `to` receives. */
static void json_read_calls(const hk_json_node *file, hk_program_set *to) {
  long long version = 0, least = 0, most = 0;
  hk_json_only(file, " hocket programs in_place out_of_place min_bytes max_bytes ");
  hk_json_get_whole(file, "hocket", true, 1, 1, &version);
  hk_json_get_boolean(file, "in_place", false, &to->in_place);
  hk_json_get_boolean(file, "out_of_place", false, &to->out_of_place);
  hk_json_get_whole(file, "min_bytes", false, 0, LLONG_MAX, &least);
  hk_json_get_whole(file, "max_bytes", false, 0, LLONG_MAX, &most);
  to->least = (unsigned long long)least;
  to->most = (unsigned long long)most;
}

hk_status hk_json_programs_read(hk_program_file *out, const char *name, const char *text, unsigned slots) {
  hk_status rc = HK_OK;
  hk_json_tree t = {.root = NULL};
  hk_program_piece *pieces = NULL;
  hk_program_set calls = {.in_place = true, .out_of_place = true};
  size_t n = 0;
  HK_TRY(hk_json_tree_parse(&t, name, text), out);
  const hk_json_node file = hk_json_root(&t);
  const bool bare = hk_json_is(&file, HK_JSON_LIST);
  hk_json_node list = file, program;
  if (!bare && !hk_json_has(&file, "hocket", HK_JSON_WHOLE, &list) && hk_json_has(&file, "gpus", HK_JSON_LIST, &list))
    HK_GIVE_UP(hk_mscclpp_read(out, &file, slots), out);
  if (!bare) json_read_calls(&file, &calls);
  if (!bare && !hk_json_get(&file, "programs", HK_JSON_LIST, true, &list)) goto out;
  n = hk_json_size(&list);
  if (!n || n > INT_MAX) hk_json_say(&list, "this holds no program, or too many");
  pieces = calloc(n ? n : 1, sizeof *pieces);
  if (!pieces) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for the programs of %s", name), out);
  for (size_t i = 0; i < n && !t.errors; i++)
    if (hk_json_at(&list, i, HK_JSON_OBJECT, &program)) HK_TRY(json_read_program(&program, &pieces[i].program), out);
  if (!t.errors) HK_TRY(hk_program_file_gather(out, name, bare ? "" : "programs", pieces, (int)n), out);
  for (int i = 0; i < out->nsets; i++) {
    hk_program_set *s = &out->sets[i];
    s->in_place = calls.in_place;
    s->out_of_place = calls.out_of_place;
    s->least = calls.least;
    s->most = calls.most;
  }
out:
  if (rc == HK_OK) rc = hk_json_tree_status(&t);
  for (size_t i = 0; pieces && i < n; i++) hk_program_free(pieces[i].program);
  free(pieces);
  hk_json_tree_free(&t);
  return rc;
}

void hk_program_set_text(const hk_program_set *s, FILE *to) {
  for (int r = 0; r < s->nranks; r++) hk_program_dump(s->programs[r], to);
}

void hk_program_set_json(const hk_program_set *s, FILE *to) {
  fputs("{\"hocket\":1,", to);
  if (!s->in_place || !s->out_of_place)
    fprintf(to, "\"in_place\":%s,\"out_of_place\":%s,", s->in_place ? "true" : "false",
            s->out_of_place ? "true" : "false");
  if (s->least) fprintf(to, "\"min_bytes\":%llu,", s->least);
  if (s->most) fprintf(to, "\"max_bytes\":%llu,", s->most);
  fputs("\"programs\":[\n", to);
  for (int r = 0; r < s->nranks; r++) {
    if (r) fputs(",\n", to);
    hk_program_json(s->programs[r], to);
  }
  fputs("]}\n", to);
}
