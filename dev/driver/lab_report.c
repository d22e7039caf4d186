/* Texts of sizes, and the CSV file. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <errno.h>
#include <sys/stat.h>
#include <time.h>
#include "lab.h"
#include "llmc/base/version.h"

static FILE *csv;

const char *sizes_text(const Sizes *s) {
    static char text[96];
    if (!s->HD) {
        const long long columns = s->OC ? s->OC : s->Vp ? s->Vp : s->C;
        int n = snprintf(text, sizeof text, "%s%s%lld", s->what ? s->what : "", s->what ? " " : "",
                         (long long)s->N);
        if (columns) n += snprintf(text + n, sizeof text - (size_t)n, " x %lld", columns);
        if (s->IC) snprintf(text + n, sizeof text - (size_t)n, " x %d", s->IC);
        return text;
    }
    char keys[24] = "", values[24] = "", window[24] = "", blocks[64] = "", of_blocks[48];
    if (s->Tk != s->T) snprintf(keys, sizeof keys, ":%d", s->Tk);
    if (s->DV != s->HD) snprintf(values, sizeof values, ":%d", s->DV);
    if (s->window) snprintf(window, sizeof window, " window %d", s->window);
    if (s->blocks.window)
        snprintf(blocks, sizeof blocks, " blocks %s", sparse_text(of_blocks, sizeof of_blocks, s->blocks));
    snprintf(text, sizeof text, "%d x %d%s, %d x %d%s %s%s%s%s%s", s->B, s->T, keys, s->NH, s->HD, values,
             s->causal ? "causal" : "full", s->sparse ? " sparse" : "", s->dropout ? " dropout" : "", window,
             blocks);
    return text;
}

/* Comment lines that say where the numbers are from: commit, machine, command, date. */
static void write_header(int argc, char **argv) {
    const Ops *gpu = lab_table(NEEDS_GPU, DTYPE_BF16);
    char date[32];
    const time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", gmtime(&now));
    fprintf(csv, "# commit %s\n# cpu %s\n", program_commit(),
            lab_table(NEEDS_CPU, DTYPE_F32)->device->name());
    if (gpu) fprintf(csv, "# gpu %s\n# %s\n", gpu->device->name(), lab_cuda_versions());
    fprintf(csv, "# date %s\n# command", date);
    for (int i = 0; i < argc; i++) fprintf(csv, " %s", argv[i]);
    fprintf(
        csv,
        "\nkind,op,variant,dtype,what,B,T,Tk,NH,HD,DV,causal,sparse,dropout,window,N,C,OC,IC,V,fill,result,"
        "error,limit,largest,ms,spread,tflops,gbytes_per_s,percent_of_roof,gflop_variant,"
        "mbytes_variant,density,scratch_mbytes\n");
}

/* A file that is there and was not written by report_open(). */
static bool is_foreign(const char *path) {
    char begin[9] = "# commit";
    struct stat info;
    FILE *file =
        stat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0 ? fopen(path, "r") : NULL;
    if (!file) return false;
    const bool foreign = fread(begin, 1, 8, file) != 8 || strcmp(begin, "# commit") != 0;
    fclose(file);
    return foreign;
}

bool report_open(const Options *o, int argc, char **argv, Error *err) {
    if (!*o->csv) return true;
    if (is_foreign(o->csv))
        return fail(err, EXIT_INPUT,
                    "--csv: %s: is there already, and no CSV of the lab's; hint: another name", o->csv);
    csv = fopen(o->csv, "w");
    if (!csv) return fail(err, EXIT_INPUT, "--csv: %s: %s", o->csv, strerror(errno));
    write_header(argc, argv);
    return true;
}

bool report_close(Error *err) {
    if (!csv) return true;
    const bool written = !ferror(csv);
    if (fclose(csv) || !written)
        return fail(err, EXIT_RUN, "--csv: the file could not be written: %s", strerror(errno));
    csv = NULL;
    return true;
}

void report_comment(const char *text) {
    printf("# %s\n", text);
    if (csv) fprintf(csv, "# %s\n", text);
}

CsvRow csv_row(const char *kind, const char *result) {
    return (CsvRow){kind, NULL, result, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
}

void report_csv(const Variant *v, const Sizes *s, const CsvRow *row) {
    if (!csv) return;
    fprintf(csv, "%s,%s,%s,%s,%s,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%lld,%d,%d,%d,%d,%s,%s", row->kind, v->op,
            v->name, v->dtype == DTYPE_BF16 ? "bf16" : "fp32", s->what ? s->what : "", s->B, s->T, s->Tk,
            s->NH, s->HD, s->DV, s->causal, s->sparse || s->blocks.window, s->dropout, s->window,
            (long long)s->N, s->C, s->OC, s->IC, s->V, row->fill ? row->fill : "", row->result);
    const double cells[] = {row->error,  row->limit,  row->largest, row->ms,
                            row->spread, row->tflops, row->gbytes,  row->percent,
                            row->gflop,  row->mbytes, row->density, row->scratch_mbytes};
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
        if (isnan(cells[i]))
            fprintf(csv, ",");
        else
            fprintf(csv, ",%.6g", cells[i]);
    fprintf(csv, "\n");
    fflush(csv);
}
