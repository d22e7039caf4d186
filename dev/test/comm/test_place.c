/* What each launcher's variables say of this process, and what contradicts itself. */
#include <stdlib.h>
#include <string.h>
#include "llmc/comm/place.h"
#include "dev/test/check.h"

enum { VARIABLES = 12 };

static void set_environment(const char *const variables[VARIABLES]) {
    clearenv();
    for (int i = 0; i < VARIABLES && variables[i]; i++) {
        char name[64];
        const char *value = strchr(variables[i], '=') + 1;
        snprintf(name, sizeof name, "%.*s", (int)(value - 1 - variables[i]), variables[i]);
        setenv(name, value, 1);
    }
}

/* clang-format off */
static const struct {
    const char *what;
    const char *variables[VARIABLES];
    const char *launcher; /* NULL: none */
    int rank, n_ranks, local_rank, n_local;
    const char *address;
    int port, listening; /* port -1: one of the job's own */
} good[] = {
    {"none", {0}, NULL, 0, 1, 0, 1, "", 0, -1},
    {"empty variables", {"RANK=", "WORLD_SIZE="}, NULL, 0, 1, 0, 1, "", 0, -1},
    {"a shell of SLURM", {"SLURM_JOB_ID=7", "SLURM_NTASKS=4", "SLURM_JOB_NODELIST=a[1-4]"}, NULL, 0, 1, 0, 1, "", 0, -1},
    {"a batch script of SLURM", {"SLURM_JOB_ID=7", "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NTASKS=4", "SLURM_JOB_NODELIST=a[1-4]"}, NULL, 0, 1, 0, 1, "", 0, -1},
    {"task 0 of srun in it", {"SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NTASKS=4", "SLURM_JOB_NODELIST=a[1-4]"},
     "srun", 0, 4, 0, 0, "a1", -1, -1},
    {"--gpus, rank 0", {"LLMC_RENDEZVOUS_FD=5", "RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=4321"},
     "--gpus", 0, 2, 0, 2, "127.0.0.1", 4321, 5},
    {"--gpus, rank 1 in a task of srun", {"LLMC_RENDEZVOUS_FD=-1", "RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=4321",
     "SLURM_PROCID=0", "SLURM_NTASKS=1", "TORCHELASTIC_USE_AGENT_STORE=True"}, "--gpus", 1, 2, 1, 2, "127.0.0.1", 4321, -1},
    {"torchrun", {"RANK=11", "WORLD_SIZE=16", "LOCAL_RANK=3", "LOCAL_WORLD_SIZE=8", "MASTER_ADDR=fd00::1", "MASTER_PORT=29400"},
     "torchrun", 11, 16, 3, 8, "fd00::1", 29400, -1},
    {"torchrun that listens itself", {"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=29500", "TORCHELASTIC_USE_AGENT_STORE=True",
     "TORCHELASTIC_RUN_ID=x"}, "torchrun", 1, 2, 1, 2, "h", -1, -1},
    {"torchrun in tasks of srun", {"RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=1", "SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_LOCALID=0"},
     "torchrun", 3, 4, 1, 2, "h", 1, -1},
    {"pods", {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=job-master-0", "MASTER_PORT=23456"}, "torchrun", 1, 2, -1, 0, "job-master-0", 23456, -1},
    {"one process of torchrun", {"RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0"}, "torchrun", 0, 1, 0, 0, "", 0, -1},
    {"srun", {"SLURM_PROCID=5", "SLURM_NTASKS=8", "SLURM_LOCALID=1", "SLURM_JOB_NODELIST=gpu[07-09,12]-ib,z", "SLURM_JOB_ID=99", "SLURM_LAUNCH_NODE_IPADDR=10.0.0.9"},
     "srun", 5, 8, 1, 0, "gpu07-ib", -1, -1},
    {"srun, a step on some of the hosts", {"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_NTASKS=8", "SLURM_LOCALID=0", "SLURM_JOB_NODELIST=a,b,c", "SLURM_STEP_NODELIST=b,c"},
     "srun", 1, 2, 0, 0, "b", -1, -1},
    {"srun, two brackets", {"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_LOCALID=0", "SLURM_JOB_NODELIST=r[3,5]n[10-11].x,y"}, "srun", 0, 2, 0, 0, "r3n10.x", -1, -1},
    {"srun, an address of the user's", {"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_LOCALID=0", "SLURM_JOB_NODELIST=a,b", "MASTER_ADDR=c", "MASTER_PORT=5"}, "srun", 0, 2, 0, 0, "c", 5, -1},
    {"srun, no list", {"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_LOCALID=0", "SLURM_LAUNCH_NODE_IPADDR=10.0.0.9"}, "srun", 0, 2, 0, 0, "10.0.0.9", -1, -1},
    {"Open MPI on one host", {"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=2", "OMPI_COMM_WORLD_LOCAL_SIZE=4"},
     "Open MPI", 2, 4, 2, 4, "127.0.0.1", -1, -1},
    {"Open MPI on two", {"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=2", "MASTER_ADDR=n1"},
     "Open MPI", 2, 4, 0, 2, "n1", -1, -1},
    {"Open MPI in a job of SLURM", {"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=2", "SLURM_JOB_NODELIST=n[1-2]", "SLURM_PROCID=1",
     "SLURM_NTASKS=2"}, "Open MPI", 2, 4, 0, 2, "n1", -1, -1},
    {"MPICH", {"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2"}, "MPI", 1, 2, 1, 2, "127.0.0.1", -1, -1},
    {"srun that speaks PMI", {"PMI_RANK=3", "PMI_SIZE=4", "SLURM_LOCALID=1", "SLURM_PROCID=3", "SLURM_NTASKS=4", "SLURM_JOB_NODELIST=a[1-2]"}, "MPI", 3, 4, 1, 0, "a1", -1, -1},
};

static const struct {
    const char *variables[VARIABLES], *says;
} bad[] = {
    {{"RANK=0"}, "RANK is set, WORLD_SIZE is not"},
    {{"WORLD_SIZE=2"}, "WORLD_SIZE is set, RANK is not"},
    {{"RANK=2", "WORLD_SIZE=2", "MASTER_ADDR=a"}, "RANK=2, but WORLD_SIZE=2"},
    {{"RANK=one", "WORLD_SIZE=2"}, "RANK='one' is not a whole number"},
    {{"RANK=-1", "WORLD_SIZE=2"}, "RANK='-1'"},
    {{"RANK=0", "WORLD_SIZE=0"}, "WORLD_SIZE='0'"},
    {{"RANK=0", "WORLD_SIZE=99999999999999999999"}, "WORLD_SIZE='99999999999999999999'"},
    {{"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK= 1"}, "LOCAL_RANK=' 1'"},
    {{"RANK=0", "WORLD_SIZE=4", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=a"}, "LOCAL_RANK=2, but LOCAL_WORLD_SIZE=2"},
    {{"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=a"}, "LOCAL_WORLD_SIZE=4, but WORLD_SIZE=2 are all"},
    {{"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0"}, "does not say where rank 0 of 2 is; hint: MASTER_ADDR"},
    {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=70000"}, "MASTER_PORT='70000'"},
    {{"PMI_RANK=0", "PMI_SIZE=2", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=1"}, "MPI does not say where rank 0 of 2 is"},
    {{"SLURM_PROCID=0"}, "SLURM_PROCID is set, SLURM_STEP_NUM_TASKS is not"},
    {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2"}, "RANK=0 and WORLD_SIZE=2, but OMPI_COMM_WORLD_RANK=1"},
    {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a", "PMI_RANK=0", "PMI_SIZE=two"}, "PMI_SIZE='two'"},
    {{"RANK=0", "WORLD_SIZE=1", "PMI_RANK=0", "PMI_SIZE=2"}, "WORLD_SIZE=1, but PMI_RANK=0 and PMI_SIZE=2"},
};
/* clang-format on */

static void test_good(void) {
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        Place p;
        Error err = {0};
        set_environment(good[i].variables);
        if (!CHECK(place_find(&p, &err), "%s: %s", good[i].what, err.text)) continue;
        const bool same_launcher = p.launcher && good[i].launcher ? !strcmp(p.launcher, good[i].launcher)
                                                                  : p.launcher == good[i].launcher;
        CHECK(same_launcher, "%s: launcher %s", good[i].what, p.launcher ? p.launcher : "none");
        CHECK(p.ranks.rank == good[i].rank && p.ranks.n_ranks == good[i].n_ranks, "%s: rank %d of %d",
              good[i].what, p.ranks.rank, p.ranks.n_ranks);
        CHECK(p.local_rank == good[i].local_rank && p.n_local == good[i].n_local, "%s: local rank %d of %d",
              good[i].what, p.local_rank, p.n_local);
        CHECK(!strcmp(p.address, good[i].address), "%s: address '%s'", good[i].what, p.address);
        CHECK(good[i].port < 0 ? p.port >= 10000 && p.port < 30000 && p.port != 29500
                               : p.port == good[i].port,
              "%s: port %d", good[i].what, p.port);
        CHECK(p.listening == good[i].listening, "%s: listens at %d", good[i].what, p.listening);
    }
}

static void test_bad(void) {
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Place p;
        Error err = {0};
        set_environment(bad[i].variables);
        CHECK(!place_find(&p, &err) && err.exit_code == EXIT_INPUT && strstr(err.text, bad[i].says),
              "expected '%s', found '%s', exit %d", bad[i].says, err.text, err.exit_code);
    }
}

/* Ranks of one job meet at one port; another job has another one. */
static void test_ports(void) {
    static const char *const ranks[3][VARIABLES] = {
        {"SLURM_JOB_ID=12", "SLURM_STEP_ID=3", "SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_JOB_NODELIST=a",
         "SLURM_LOCALID=0"},
        {"SLURM_JOB_ID=12", "SLURM_STEP_ID=3", "SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_JOB_NODELIST=a",
         "SLURM_LOCALID=1"},
        {"SLURM_JOB_ID=13", "SLURM_STEP_ID=3", "SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_JOB_NODELIST=a",
         "SLURM_LOCALID=1"},
    };
    Place p[3];
    Error err = {0};
    for (int i = 0; i < 3; i++) {
        set_environment(ranks[i]);
        CHECK(place_find(&p[i], &err), "%s", err.text);
    }
    CHECK(p[0].port == p[1].port && p[0].run == p[1].run, "ports %d and %d", p[0].port, p[1].port);
    CHECK(p[0].port != p[2].port && p[0].run != p[2].run, "two jobs at port %d", p[0].port);
}

int main(void) {
    test_good();
    test_bad();
    test_ports();
    return check_finish("place");
}
