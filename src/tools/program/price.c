/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket program price`: compares the programs of a file with the built-in choice. */
#include "../../base/json.h"
#include "../../decide/protocol.h"
#include "../../program/program.h"
#include "../../sim/sim.h"
#include "../../topo/topo.h"
#include "../machine.h"
#include "program.h"
#include "site.h"

typedef struct options {
  const char *machine, *xml;
  size_t begin, end;
  double factor;
  int protocol, channels;
  bool json;
} options;

/* A file's program and the built-in choice for one size. */
typedef struct price_pair {
  size_t bytes;
  hk_sim_result own, built_in;
} price_pair;

static void price_row(hk_table *t, const char *size, const hk_sim_result *r, double ratio, hk_style style) {
  char price[32], time[32];
  hk_table_row(t, style, "%s\t%s\t%s\t%d\t%s\t%s\t%.4g\t%.2f", size, r->algorithm, hk_protocols[r->protocol].name,
               r->channels, hk_tool_time(price, r->priced_us), hk_tool_time(time, r->us), r->busbw, ratio);
}

static void price_put(hk_json *w, const char *key, const hk_sim_result *r) {
  hk_json_begin(w, key, '{');
  hk_json_put_text(w, "algorithm", r->algorithm);
  hk_json_put_text(w, "protocol", hk_protocols[r->protocol].name);
  hk_json_put_integer(w, "channels", r->channels);
  hk_json_put_number(w, "priced_us", r->priced_us);
  hk_json_put_number(w, "us", r->us);
  hk_json_put_number(w, "busbw_gbps", r->busbw);
  hk_json_close(w);
}

static void price_pair_out(const price_pair *x, hk_table *t, hk_json *w) {
  const double ratio = x->built_in.us > 0 ? x->own.us / x->built_in.us : 1;
  char size[32];
  if (t) {
    price_row(t, hk_tool_bytes(size, x->bytes), &x->own, ratio, HK_STYLE_PLAIN);
    price_row(t, "", &x->built_in, 1, HK_STYLE_DIM);
    return;
  }
  hk_json_open(w, '{');
  hk_json_put_integer(w, "bytes", (long long)x->bytes);
  price_put(w, "program", &x->own);
  price_put(w, "built_in", &x->built_in);
  hk_json_put_number(w, "ratio", ratio);
  hk_json_close(w);
}

static hk_status price_sizes(const hk_program_set *s, const hk_site *site, const options *o, hk_table *t, hk_json *w) {
  const hk_sim_options how = {.protocol = o->protocol - 1, .channels = o->channels};
  const hk_coll coll = (hk_coll)s->programs[0]->coll;
  hk_status rc = HK_OK;
  for (double x = (double)o->begin; rc == HK_OK && x <= (double)o->end * 1.0001; x *= o->factor) {
    price_pair pair = {.bytes = (size_t)x};
    rc = hk_site_run(&pair.own, site, s->programs, pair.bytes, &how);
    if (rc == HK_OK) rc = hk_site_run_built_in(&pair.built_in, site, coll, pair.bytes);
    if (rc == HK_OK) price_pair_out(&pair, t, w);
    hk_sim_result_clear(&pair.own);
    hk_sim_result_clear(&pair.built_in);
  }
  return rc;
}

static void price_notes(const hk_program_set *s, const hk_site *site, const options *o) {
  char text[HK_ACCURACY_TEXT], least[32], most[32];
  putchar('\n');
  hk_tool_wrap(stdout, 0,
               "The second row of a size is the library's choice without the file. TIME is simulated, PRICE is what "
               "the library chooses by. RATIO below 1: the file's program is faster.");
  if (s->least || s->most)
    printf("The library uses the file from %s%s%s only.\n", hk_tool_bytes(least, (size_t)s->least),
           s->most ? " to " : " on", s->most ? hk_tool_bytes(most, (size_t)s->most) : "");
  putchar('\n');
  hk_tool_wrap(stdout, 0, hk_tool_accuracy(text, site->cluster, o->begin, o->end, false));
  hk_tool_remarks(site->cluster->kinds[0], stdout);
}

static hk_status price_table(const hk_program_set *s, const hk_site *site, const options *o) {
  hk_table *t = hk_table_new("rllrrrrr");
  printf("%s: %s on %d ranks\n\n", site->name, hk_coll_name((hk_coll)s->programs[0]->coll), s->nranks);
  hk_table_row(t, HK_STYLE_BOLD, "SIZE\tALGORITHM\tPROTOCOL\tCHANNELS\tPRICE\tTIME\tBUS GB/s\tRATIO");
  const hk_status rc = price_sizes(s, site, o, t, NULL);
  hk_table_print(t, 2, stdout);
  if (rc == HK_OK) price_notes(s, site, o);
  return rc;
}

static hk_status price_json(const hk_program_set *s, const hk_site *site, const options *o, hk_json *w) {
  char text[HK_ACCURACY_TEXT];
  hk_json_open(w, '{');
  hk_json_put_text(w, "machine", site->name);
  hk_json_put_text(w, "collective", hk_coll_name((hk_coll)s->programs[0]->coll));
  hk_json_put_integer(w, "ranks", s->nranks);
  hk_json_put_text(w, "accuracy", hk_tool_accuracy(text, site->cluster, o->begin, o->end, false));
  hk_json_begin(w, "results", '[');
  const hk_status rc = price_sizes(s, site, o, NULL, w);
  hk_json_close(w);
  hk_json_close(w);
  return rc;
}

static int price_set(const hk_program_set *s, const options *o, hk_json *w) {
  hk_site site;
  int code = hk_site_open(&site, o->machine, o->xml, s->nranks);
  if (code == HK_EXIT_OK) {
    const hk_status rc = w ? price_json(s, &site, o, w) : price_table(s, &site, o);
    if (rc != HK_OK) code = hk_tool_failed(rc);
  }
  hk_site_close(&site);
  return code;
}

static int price_run(void *into, int nargs, char **args) {
  const options *o = into;
  hk_json j = {.f = stdout}, *w = o->json ? &j : NULL;
  int code = HK_EXIT_OK;
  if (o->factor <= 1) return hk_tool_wrong("--factor must be more than 1");
  if (o->begin < 1 || o->end < o->begin) return hk_tool_wrong("--begin must be at least 1 and at most --end");
  if (w) hk_json_open(w, '[');
  for (int i = 0; i < nargs && code == HK_EXIT_OK; i++) {
    hk_program_file f;
    code = hk_program_open_proved(&f, args[i]);
    for (int k = 0; k < f.nsets && code == HK_EXIT_OK; k++) {
      if ((i || k) && !w) putchar('\n');
      code = price_set(&f.sets[k], o, w);
    }
    hk_program_file_free(&f);
  }
  if (!w) return code;
  hk_json_close(w);
  putchar('\n');
  return code;
}

static const hk_tool_option rows[] = {
    HK_ROW_MACHINE(machine),
    HK_ROW_XML(xml),
    HK_ROW_SIZE(begin, "begin", "SIZE", "the first size", .letter = 'b', .def = "1K"),
    HK_ROW_SIZE(end, "end", "SIZE", "the last size", .letter = 'e', .def = "1G"),
    HK_ROW_NUMBER(factor, "factor", "NUMBER", "from one size to the next", .def = "4"),
    HK_ROW_WORD(protocol, "protocol", "NAME", "protocol of the file's programs", .letter = 'p', .def = "auto",
                .words = hk_tool_protocol_word),
    HK_ROW_INT(channels, "channels", "N", "channels of the file's programs; 0: what the selector takes", .high = 64),
    HK_ROW_FLAG(json, "json", "write JSON"),
    {0}};

const hk_tool hk_program_price = {
    .name = "program price",
    .about = "compare the programs of a file with the built-in choice, by price and simulation",
    .usage = "FILE...",
    .text = "Simulates the programs of a file, for sizes from --begin to --end, and the algorithm that the library "
            "chooses without the file. Sizes are those of the larger of a rank's buffers. The parameters that "
            "change the choice (NCCL_ALGO, NCCL_PROTO and others) have their effect on the built-in choice. "
            "docs/simulator.md describes the model and its error.",
    .examples = "hocket program price ring.xml -m dgx-a100 -b 64K -e 64M\n  is it worth its place in HOCKET_PROGRAMS?",
    .options = rows,
    .bytes = sizeof(options),
    .least = 1,
    .most = -1,
    .run = price_run,
};
