/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket program draw`: the steps of all ranks over time, as a picture and as a timeline. */
#include "../../sim/sim.h"
#include "../machine.h"
#include "picture.h"
#include "program.h"
#include "site.h"

typedef struct options {
  const char *machine, *xml, *output, *timeline;
  size_t size;
  int protocol, channels;
} options;

enum { BOARD = 8 /* GPUs of a host, at most */ };

/* A machine for that number of ranks: hosts of equally many GPUs. */
static void draw_machine(int nranks, char *text, size_t capacity) {
  int each = nranks < BOARD ? nranks : BOARD;
  while (nranks % each) each--;
  if (each == nranks)
    snprintf(text, capacity, "%dxh100:nvswitch", each);
  else
    snprintf(text, capacity, "nodes=%d of %dxh100:nvswitch nic=%dx400", nranks / each, each, each);
}

static hk_status draw_picture(FILE *to, const void *what) { return hk_picture_write(to, what); }
static hk_status draw_timeline(FILE *to, const void *what) {
  return hk_sim_trace(((const hk_picture *)what)->result, to);
}

static int draw_set(const hk_program_set *set, const options *o) {
  const hk_sim_options how = {.protocol = o->protocol - 1, .channels = o->channels, .exact = true, .timeline = true};
  char words[80];
  hk_site site;
  hk_sim_result result = {.nspans = 0};
  draw_machine(set->nranks, words, sizeof words);
  int code = hk_site_open(&site, o->machine || o->xml ? o->machine : words, o->xml, set->nranks);
  if (code != HK_EXIT_OK) goto out;
  const hk_status rc = hk_site_run(&result, &site, set->programs, o->size, &how);
  const hk_picture picture = {.set = set, .result = &result, .machine = site.name, .bytes = o->size};
  if (rc != HK_OK)
    code = hk_tool_failed(rc);
  else if ((o->output || !o->timeline) && result.nspans > HK_PICTURE_SPANS)
    code = hk_tool_wrong("%u instructions run, and a picture can show %d: make --size smaller, or --channels fewer",
                         result.nspans, HK_PICTURE_SPANS);
  else if (o->output || !o->timeline)
    code = hk_tool_output(o->output, draw_picture, &picture);
  if (code == HK_EXIT_OK && o->timeline) code = hk_tool_output(o->timeline, draw_timeline, &picture);
  hk_sim_result_clear(&result);
out:
  hk_site_close(&site);
  return code;
}

static int draw_run(void *into, int nargs, char **args) {
  const options *o = into;
  hk_program_file f;
  (void)nargs; /* one */
  int code = hk_program_open_proved(&f, args[0]);
  if (code == HK_EXIT_OK && f.nsets > 1)
    code = hk_tool_wrong("%s holds programs of %d collectives; a picture is of one", args[0], f.nsets);
  if (code == HK_EXIT_OK) code = draw_set(&f.sets[0], o);
  hk_program_file_free(&f);
  return code;
}

static const hk_tool_option rows[] = {
    HK_ROW_TEXT(machine, "machine", "STRING",
                "a machine in words, as for hocket sim; without it and --file: H100 with NVSwitch", .letter = 'm',
                .words = hk_tool_preset_word),
    HK_ROW_XML(xml),
    HK_ROW_SIZE(size, "size", "SIZE", "size of the larger of a rank's buffers", .letter = 's', .def = "1M"),
    HK_ROW_WORD(protocol, "protocol", "NAME", "protocol of the links", .letter = 'p', .def = "auto",
                .words = hk_tool_protocol_word),
    HK_ROW_INT(channels, "channels", "N", "channels", .def = "1", .low = 1, .high = 64),
    HK_ROW_FILE(output, "output", "FILE", "the picture, SVG; without it the standard output", .letter = 'o'),
    HK_ROW_FILE(timeline, "timeline", "FILE", "write the timeline, for Perfetto or chrome://tracing"),
    {0}};

const hk_tool hk_program_draw = {
    .name = "program draw",
    .about = "draw the steps of all ranks over time",
    .usage = "FILE",
    .text = "Simulates the programs of a file and draws a row for each rank and lane, a box for each instruction and a "
            "line for each message. One channel shows the steps; the library may take more. A viewer of SVG "
            "shows the text of the instruction below the pointer.",
    .examples = "hocket program draw ring.xml -o ring.svg\n  a picture\n"
                "hocket program draw ring.xml -s 64M --channels 8 --timeline ring.json\n  a timeline only",
    .options = rows,
    .bytes = sizeof(options),
    .least = 1,
    .most = 1,
    .run = draw_run,
};
