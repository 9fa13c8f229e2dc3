#include "dtopp/launch/launch_environment.h"

#include <algorithm>
#include <map>
#include <ostream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "dtopp/base/errors.h"
#include "tests/base/scratch_directory.h"

namespace dtopp::launch::launch_environment_test {
namespace {

using Variables = std::map<std::string, std::string>;

LaunchEnvironment environment_from(const Variables& variables) {
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  return read_launch_environment(entries);
}

// Returns `base` with changes. A null value removes the variable.
Variables with(Variables base, const std::vector<std::pair<std::string, const char*>>& changes) {
  for (const auto& [name, value] : changes) {
    base.erase(name);
    if (value != nullptr) base[name] = value;
  }
  return base;
}

struct Fields {
  int64_t rank, size, local_rank, local_size;
  std::string master;
  Launcher launcher;
  bool operator==(const Fields&) const = default;
};

void PrintTo(const Fields& fields, std::ostream* out) {
  *out << "rank " << fields.rank << " of " << fields.size << ", local " << fields.local_rank << " of "
       << fields.local_size << ", " << fields.master << ", launcher " << static_cast<int>(fields.launcher);
}

Fields fields_from(const Variables& variables) {
  const LaunchEnvironment environment = environment_from(variables);
  return {environment.rank,
          environment.world_size,
          environment.local_rank,
          environment.local_world_size,
          environment.master_addr + ":" + std::to_string(environment.master_port),
          environment.launcher};
}

const Fields kAlone{0, 1, 0, 1, ":0", Launcher::kNone};

const Variables kTorchrun{{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "node7"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_RUN_ID", "none"},
                          {"TORCHELASTIC_RESTART_COUNT", "2"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

// The variables that `srun -N 3 -n 11` sets inside `sbatch -N 4 -n 16`, as far as they are read.
const Variables kSlurmStep{{"ENVIRONMENT", "BATCH"},
                           {"SLURM_JOB_ID", "8193"},
                           {"SLURM_STEP_ID", "2"},
                           {"SLURM_PROCID", "9"},
                           {"SLURM_NTASKS", "11"},
                           {"SLURM_STEP_NUM_TASKS", "11"},
                           {"SLURM_LOCALID", "1"},
                           {"SLURM_NODEID", "2"},
                           {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"},
                           {"SLURM_STEP_NODELIST", "gpu[004-006]"},
                           {"SLURM_NODELIST", "gpu[004-006]"},
                           {"SLURM_JOB_NODELIST", "gpu[003-006]"}};

const Variables kOpenMpi{
    {"OMPI_COMM_WORLD_RANK", "3"},       {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"MASTER_ADDR", "node7"},      {"MASTER_PORT", "29500"}};

TEST(ReadLaunchEnvironment, without_a_launcher_is_alone) {
  EXPECT_EQ(fields_from({}), kAlone);
  EXPECT_TRUE(environment_from({}).alone());
  EXPECT_EQ(fields_from({{"MASTER_ADDR", "node7"}, {"MASTER_PORT", "x"}, {"LOCAL_RANK", "3"}}), kAlone);
  EXPECT_EQ(fields_from({{"RANK", ""}, {"WORLD_SIZE", ""}}), kAlone);
}

TEST(ReadLaunchEnvironment, reads_what_torchrun_sets) {
  EXPECT_EQ(fields_from(kTorchrun), (Fields{5, 8, 1, 4, "node7:29500", Launcher::kEnvironment}));
  const LaunchEnvironment environment = environment_from(kTorchrun);
  EXPECT_FALSE(environment.alone());
  EXPECT_TRUE(environment.launcher_holds_store);
  EXPECT_EQ(environment.store_prefix, "dtopp/2");
}

TEST(ReadLaunchEnvironment, leaves_the_store_to_rank_0_where_torchruns_agent_does_not_share_its_own) {
  for (const auto* const value : {"False", static_cast<const char*>(nullptr)}) {
    const LaunchEnvironment environment =
        environment_from(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", value}}));
    EXPECT_FALSE(environment.launcher_holds_store);
    EXPECT_EQ(environment.store_prefix, "");
  }
}

TEST(ReadLaunchEnvironment, knows_its_own_launcher_which_holds_the_store_also_inside_of_another) {
  const auto own = with(kTorchrun, {{"DTOPP_LAUNCHER", "processes"}});
  EXPECT_EQ(fields_from(own), (Fields{5, 8, 1, 4, "node7:29500", Launcher::kOwn}));
  EXPECT_TRUE(environment_from(own).launcher_holds_store);
  EXPECT_EQ(environment_from(own).store_prefix, "");
  EXPECT_EQ(fields_from({{"DTOPP_LAUNCHER", "processes"}}), kAlone);
}

TEST(ReadLaunchEnvironment, prefers_ranks_set_by_hand_to_open_mpis_and_those_to_slurms) {
  auto all = kSlurmStep;
  all.insert(kOpenMpi.begin(), kOpenMpi.end());
  EXPECT_EQ(fields_from(all), (Fields{3, 4, 1, 2, "node7:29500", Launcher::kOpenMpi}));
  EXPECT_FALSE(environment_from(all).launcher_holds_store);
  all.insert(kTorchrun.begin(), kTorchrun.end());
  EXPECT_EQ(fields_from(all), (Fields{5, 8, 1, 4, "node7:29500", Launcher::kEnvironment}));
}

TEST(ReadLaunchEnvironment, does_not_make_up_what_nobody_says_of_the_machine) {
  const auto no_size = with(kTorchrun, {{"LOCAL_WORLD_SIZE", nullptr}});
  EXPECT_EQ(fields_from(no_size), (Fields{5, 8, 1, 0, "node7:29500", Launcher::kEnvironment}));
  EXPECT_EQ(fields_from(with(no_size, {{"LOCAL_RANK", nullptr}})),
            (Fields{5, 8, 0, 0, "node7:29500", Launcher::kEnvironment}));
  EXPECT_EQ(fields_from(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "1"}, {"LOCAL_RANK", nullptr}})),
            (Fields{5, 8, 0, 1, "node7:29500", Launcher::kEnvironment}));
}

TEST(ReadLaunchEnvironment, of_one_rank_needs_nobody_to_meet) {
  EXPECT_EQ(fields_from({{"RANK", "0"}, {"WORLD_SIZE", "1"}}),
            (Fields{0, 1, 0, 1, ":0", Launcher::kEnvironment}));
  EXPECT_EQ(fields_from({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}),
            (Fields{0, 1, 0, 1, ":0", Launcher::kOpenMpi}));
}

TEST(ReadLaunchEnvironment, is_a_task_of_the_slurm_step_on_whose_first_node_the_ranks_meet) {
  const Fields fields{
      9, 11, 1, 3, "gpu004:" + std::to_string(61440 + (8193 + 2018) % 4096), Launcher::kSlurm};
  EXPECT_EQ(fields_from(kSlurmStep), fields);
  EXPECT_FALSE(environment_from(kSlurmStep).launcher_holds_store);
  // Variables with the job's numbers do not override the step's.
  EXPECT_EQ(fields_from(with(kSlurmStep, {{"SLURM_NTASKS", "16"}, {"SLURM_NODELIST", "gpu[003-006]"}})),
            fields);
}

TEST(ReadLaunchEnvironment, of_slurm_takes_a_meeting_place_that_is_given) {
  EXPECT_EQ(fields_from(with(kSlurmStep, {{"MASTER_ADDR", "node7"}, {"MASTER_PORT", "1"}})),
            (Fields{9, 11, 1, 3, "node7:1", Launcher::kSlurm}));
  EXPECT_EQ(fields_from(with(kSlurmStep, {{"MASTER_PORT", "65535"}})).master, "gpu004:65535");
}

TEST(ReadLaunchEnvironment, of_slurm_has_another_port_for_another_step_or_job) {
  const auto port = [](const char* job, const char* step) {
    const auto variables = with(kSlurmStep, {{"SLURM_JOB_ID", job}, {"SLURM_STEP_ID", step}});
    return environment_from(variables).master_port;
  };
  EXPECT_NE(port("4294967295", "0"), port("4294967294", "0"));
  EXPECT_NE(port("8193", "0"), port("8193", "1"));
  EXPECT_NE(port("8193", "1"), port("8194", "0"));
  for (const auto* const job : {"0", "4095", "4096", "4294967295"}) {
    EXPECT_GE(port(job, "4294967290"), 61440);
    EXPECT_LE(port(job, "4294967290"), 65535);
  }
}

TEST(ReadLaunchEnvironment, of_slurm_does_with_what_a_container_was_given) {
  const Variables few{{"SLURM_PROCID", "0"},
                      {"SLURM_NTASKS", "2"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_JOBID", "100"},
                      {"SLURM_NODELIST", "cpu1"}};
  EXPECT_EQ(fields_from(few), (Fields{0, 2, 0, 0, "cpu1:61540", Launcher::kSlurm}));
  EXPECT_EQ(fields_from(with(few, {{"SLURM_NODEID", "0"}, {"SLURM_TASKS_PER_NODE", "2"}})).local_size, 2);
  EXPECT_EQ(fields_from(with(few, {{"SLURM_NODEID", "1"}, {"SLURM_TASKS_PER_NODE", "2"}})).local_size, 0);
  for (const auto* const tasks : {"4", "x", "0", "1(x"})
    EXPECT_EQ(fields_from(with(few, {{"SLURM_NODEID", "0"}, {"SLURM_TASKS_PER_NODE", tasks}})).local_size, 0);
}

TEST(ReadLaunchEnvironment, in_a_slurm_job_but_outside_of_a_step_of_many_is_alone) {
  const Variables job{{"SLURM_JOB_ID", "8193"}, {"SLURM_NODELIST", "gpu[1-2]"}, {"SLURM_NTASKS", "8"}};
  const Variables batch_script = with(
      job, {{"ENVIRONMENT", "BATCH"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}});
  const Variables shell_on_a_node =
      with(job, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}});
  const Variables by_ssh{{"SLURM_JOB_ID", "8193"}};
  const Variables without_a_count{{"SLURM_JOB_ID", "8193"}, {"SLURM_PROCID", "0"}};
  for (const auto& variables : {job, batch_script, shell_on_a_node, by_ssh, without_a_count})
    EXPECT_EQ(fields_from(variables), kAlone);
}

struct Refused {
  Variables variables;
  std::string message;
};

TEST(ReadLaunchEnvironment, refuses_contradictions_naming_variable_and_value) {
  const auto torch = [](const std::vector<std::pair<std::string, const char*>>& changes) {
    return with(kTorchrun, changes);
  };
  const auto slurm = [](const std::vector<std::pair<std::string, const char*>>& changes) {
    return with(kSlurmStep, changes);
  };
  const auto mpi = [](const std::vector<std::pair<std::string, const char*>>& changes) {
    return with(kOpenMpi, changes);
  };
  const std::vector<Refused> all = {
      {torch({{"RANK", "8"}}), "RANK=8: must be a whole number from 0 to 7, since WORLD_SIZE=8"},
      {torch({{"RANK", "-1"}}), "RANK=-1: must be a whole number from 0 to 7, since WORLD_SIZE=8"},
      {torch({{"RANK", "two"}}), "RANK=two: must be a whole number from 0 to 7, since WORLD_SIZE=8"},
      {torch({{"RANK", nullptr}}), "WORLD_SIZE=8 without RANK: set both or neither"},
      {torch({{"WORLD_SIZE", nullptr}}), "RANK=5 without WORLD_SIZE: set both or neither"},
      {torch({{"WORLD_SIZE", "0"}}), "WORLD_SIZE=0: must be a whole number from 1 to 2147483647"},
      {torch({{"WORLD_SIZE", "8.0"}}), "WORLD_SIZE=8.0: must be a whole number from 1 to 2147483647"},
      {torch({{"LOCAL_RANK", "4"}}),
       "LOCAL_RANK=4: must be a whole number from 0 to 3, since LOCAL_WORLD_SIZE=4"},
      {torch({{"LOCAL_RANK", nullptr}}), "LOCAL_WORLD_SIZE=4 without LOCAL_RANK: set both or neither"},
      {torch({{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "1"}}),
       "LOCAL_RANK=1: must be a whole number from 0 to 0, since LOCAL_WORLD_SIZE=1"},
      {torch({{"LOCAL_RANK", "8"}, {"LOCAL_WORLD_SIZE", nullptr}}),
       "LOCAL_RANK=8: must be a whole number from 0 to 7, since WORLD_SIZE=8"},
      {torch({{"LOCAL_WORLD_SIZE", "9"}}),
       "LOCAL_WORLD_SIZE=9: must be a whole number from 1 to 8, since WORLD_SIZE=8"},
      {torch({{"MASTER_ADDR", nullptr}}),
       "MASTER_ADDR is not set, but WORLD_SIZE=8: give the host of rank 0"},
      {torch({{"MASTER_PORT", nullptr}}),
       "MASTER_PORT is not set, but WORLD_SIZE=8: give a free port on the host of rank 0"},
      {torch({{"MASTER_PORT", "0"}}), "MASTER_PORT=0: must be a whole number from 1 to 65535"},
      {torch({{"MASTER_PORT", "65536"}}), "MASTER_PORT=65536: must be a whole number from 1 to 65535"},
      {torch({{"TORCHELASTIC_RESTART_COUNT", "x"}}),
       "TORCHELASTIC_RESTART_COUNT=x: must be a whole number from 0 to 2147483647"},
      {slurm({{"SLURM_PROCID", "11"}}),
       "SLURM_PROCID=11: must be a whole number from 0 to 10, since SLURM_STEP_NUM_TASKS=11"},
      {slurm({{"SLURM_LOCALID", nullptr}}),
       "SLURM_STEP_NUM_TASKS=11 without SLURM_LOCALID: set both or neither"},
      {slurm({{"SLURM_STEP_NODELIST", "gpu["}}),
       "SLURM_STEP_NODELIST=gpu[: not a list of hosts; give MASTER_ADDR, the host of rank 0"},
      {slurm({{"SLURM_STEP_NODELIST", nullptr}, {"SLURM_NODELIST", nullptr}}),
       "MASTER_ADDR is not set, but SLURM_STEP_NUM_TASKS=11: give the host of rank 0"},
      {slurm({{"SLURM_JOB_ID", nullptr}}),
       "MASTER_PORT is not set, but SLURM_STEP_NUM_TASKS=11: give a free port on the host of rank 0"},
      {mpi({{"OMPI_COMM_WORLD_RANK", "4"}}),
       "OMPI_COMM_WORLD_RANK=4: must be a whole number from 0 to 3, since OMPI_COMM_WORLD_SIZE=4"},
      {mpi({{"OMPI_COMM_WORLD_SIZE", nullptr}}),
       "OMPI_COMM_WORLD_RANK=3 without OMPI_COMM_WORLD_SIZE: set both or neither"},
      {mpi({{"MASTER_ADDR", nullptr}}),
       "MASTER_ADDR is not set, but OMPI_COMM_WORLD_SIZE=4: give the host of rank 0"},
  };
  for (const auto& [variables, message] : all)
    EXPECT_EQ(error_of<UsageError>([&] { environment_from(variables); }), message);
}

// Mixes the environments of all launchers; each variable is missing, empty, small, large or nonsense.
RC_GTEST_PROP(ReadLaunchEnvironment, of_any_environment_is_one_that_can_be_or_one_line_of_error, ()) {
  Variables variables;
  for (const auto& base : {kTorchrun, kSlurmStep, kOpenMpi}) {
    if (*rc::gen::arbitrary<bool>()) variables.insert(base.begin(), base.end());
  }
  for (auto& [name, value] : variables) {
    if (*rc::gen::inRange(0, 6) == 0)
      value = *rc::gen::element<std::string>("", "0", "1", "2", "4", "-1", "65536", "99999999999999999999",
                                             "x", "a[1-2", "2(x3)");
  }
  try {
    const LaunchEnvironment environment = environment_from(variables);
    RC_ASSERT(environment.rank >= 0 && environment.rank < environment.world_size);
    RC_ASSERT(environment.local_world_size >= 0 && environment.local_world_size <= environment.world_size);
    RC_ASSERT(environment.local_rank >= 0 &&
              environment.local_rank < std::max(environment.local_world_size, environment.world_size));
    RC_ASSERT(environment.local_world_size == 0 || environment.local_rank < environment.local_world_size);
    RC_ASSERT(environment.alone() || (!environment.master_addr.empty() && environment.master_port != 0));
  } catch (const UsageError& error) {
    RC_ASSERT(std::string(error.what()).find('\n') == std::string::npos);
  }
}

}  // namespace
}  // namespace dtopp::launch::launch_environment_test
