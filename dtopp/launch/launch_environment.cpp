#include "dtopp/launch/launch_environment.h"

#include <limits>

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"

namespace dtopp::launch {
std::optional<std::string> first_host(std::string_view hosts) {
  std::string host;
  for (size_t i = 0; i < hosts.size() && hosts[i] != ','; ++i) {
    if (hosts[i] == ']') return std::nullopt;
    if (hosts[i] != '[') {
      host += hosts[i];
      continue;
    }
    const size_t close = hosts.find(']', i);
    if (close == std::string_view::npos) return std::nullopt;
    const auto first = hosts.substr(i + 1, hosts.find_first_of(",-]", i) - i - 1);
    if (!whole_number(first)) return std::nullopt;
    host += first;  // as written: leading zeros belong to the name
    i = close;
  }
  return host.empty() ? std::nullopt : std::optional(host);
}

std::optional<int64_t> tasks_on_node(std::string_view tasks, int64_t node) {
  while (!tasks.empty()) {
    const size_t comma = std::min(tasks.find(','), tasks.size());
    const auto entry = tasks.substr(0, comma);
    tasks.remove_prefix(std::min(comma + 1, tasks.size()));
    const size_t open = std::min(entry.find("(x"), entry.size());
    const auto count = whole_number(entry.substr(0, open));
    std::optional<int64_t> nodes = 1;
    if (open < entry.size()) {
      if (entry.back() != ')') return std::nullopt;
      nodes = whole_number(entry.substr(open + 2, entry.size() - open - 3));
    }
    if (!count || !nodes) return std::nullopt;
    if (node < *nodes) return count;
    node -= *nodes;
  }
  return std::nullopt;
}

namespace {

// The names of the same four variables for one launcher.
struct LauncherVariables {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};
constexpr LauncherVariables kTorchNames{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr LauncherVariables kOpenMpiNames{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                          "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};

class Variables {
 public:
  explicit Variables(const std::vector<std::string>& environment) : environment_(environment) {}

  std::string text(const char* name) const {
    const std::string prefix = std::string(name) + "=";
    for (const std::string& entry : environment_)
      if (entry.starts_with(prefix)) return entry.substr(prefix.size());
    return "";
  }
  bool has(const char* name) const { return !text(name).empty(); }
  const char* first_of(const char* name, const char* other) const { return has(name) ? name : other; }
  std::string quote(const char* name) const { return std::string(name) + "=" + text(name); }

  // `reason` follows the bounds in the error message, as in ", since WORLD_SIZE=4".
  std::optional<int64_t> number(const char* name, int64_t lowest, int64_t highest,
                                const std::string& reason = "") const {
    if (!has(name)) return std::nullopt;
    const auto value = whole_number(text(name));
    if (value && *value >= lowest && *value <= highest) return value;
    throw UsageError(quote(name), ": must be a whole number from ", lowest, " to ", highest, reason);
  }
  int64_t required(const char* name, int64_t lowest, int64_t highest, const char* because_of) const {
    const auto value = number(name, lowest, highest, ", since " + quote(because_of));
    if (!value) throw UsageError(quote(because_of), " without ", name, ": set both or neither");
    return *value;
  }

 private:
  const std::vector<std::string>& environment_;
};

void read_ranks(const Variables& variables, const LauncherVariables& names, LaunchEnvironment& environment) {
  const auto size = variables.number(names.size, 1, std::numeric_limits<int32_t>::max());
  if (!size) throw UsageError(variables.quote(names.rank), " without ", names.size, ": set both or neither");
  environment.world_size = *size;
  environment.rank = variables.required(names.rank, 0, environment.world_size - 1, names.size);
}

void read_master(const Variables& variables, LaunchEnvironment& environment) {
  environment.master_addr = variables.text("MASTER_ADDR");
  environment.master_port = variables.number("MASTER_PORT", 1, 65535).value_or(0);
}

void require_master(const LaunchEnvironment& environment, const LauncherVariables& names) {
  const auto need = [&](const char* name, const char* what) {
    throw UsageError(name, " is not set, but ", names.size, "=", environment.world_size, ": give ", what);
  };
  if (environment.alone()) return;
  if (environment.master_addr.empty()) need("MASTER_ADDR", "the host of rank 0");
  if (environment.master_port == 0) need("MASTER_PORT", "a free port on the host of rank 0");
}

LaunchEnvironment find_in(const Variables& variables, const LauncherVariables& names, Launcher launcher) {
  LaunchEnvironment environment;
  environment.launcher = launcher;
  read_ranks(variables, names, environment);
  const auto since = [&](const char* name) { return ", since " + variables.quote(name); };
  const auto local_size = variables.number(names.local_size, 1, environment.world_size, since(names.size));
  environment.local_world_size = local_size.value_or(environment.alone() ? 1 : 0);
  if (local_size > 1) {
    environment.local_rank = variables.required(names.local_rank, 0, *local_size - 1, names.local_size);
  } else {
    const int64_t highest = local_size.value_or(environment.world_size) - 1;
    const char* const bound = local_size ? names.local_size : names.size;
    environment.local_rank = variables.number(names.local_rank, 0, highest, since(bound)).value_or(0);
  }
  read_master(variables, environment);
  require_master(environment, names);
  return environment;
}

LaunchEnvironment find_in_torch(const Variables& variables) {
  const bool is_own = variables.text("DTOPP_LAUNCHER") == "processes";
  LaunchEnvironment environment =
      find_in(variables, kTorchNames, is_own ? Launcher::kOwn : Launcher::kEnvironment);
  const bool has_agent = !is_own && variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  environment.launcher_holds_store = is_own || has_agent;
  if (has_agent) {
    const char* const restarts = "TORCHELASTIC_RESTART_COUNT";
    const auto count = variables.number(restarts, 0, std::numeric_limits<int32_t>::max());
    environment.store_prefix = "dtopp/" + std::to_string(count.value_or(0));
  }
  return environment;
}

// The variable with the number of tasks in the Slurm step of this process; null outside a step.
const char* slurm_size(const Variables& variables) {
  if (!variables.has("SLURM_PROCID")) return nullptr;
  if (variables.has("SLURM_STEP_NUM_TASKS")) return "SLURM_STEP_NUM_TASKS";
  const bool is_batch_script = variables.text("ENVIRONMENT") == "BATCH";
  return !is_batch_script && variables.has("SLURM_NTASKS") ? "SLURM_NTASKS" : nullptr;
}

// Returns 0 for an implausible number instead of ending the run: the ranks can then exchange host names.
int64_t slurm_local_size(const Variables& variables, const LaunchEnvironment& environment) {
  const char* const tasks = variables.first_of("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
  const auto node = whole_number(variables.text("SLURM_NODEID"));
  const auto count = node ? tasks_on_node(variables.text(tasks), *node) : std::nullopt;
  return count > environment.local_rank && count <= environment.world_size ? *count : 0;
}

// A port above the ones that Linux assigns by itself (up to 60999). Jobs on one machine, and steps of one
// job, have consecutive numbers; the prime keeps their ports apart.
uint16_t slurm_port(const Variables& variables) {
  constexpr int64_t kLargest = int64_t{1} << 32;
  const auto job = variables.number(variables.first_of("SLURM_JOB_ID", "SLURM_JOBID"), 0, kLargest);
  const auto step = variables.number(variables.first_of("SLURM_STEP_ID", "SLURM_STEPID"), 0, kLargest);
  return job ? static_cast<uint16_t>(61440 + (*job + 1009 * step.value_or(0)) % 4096) : 0;
}

LaunchEnvironment find_in_slurm(const Variables& variables, const char* size) {
  const LauncherVariables names{"SLURM_PROCID", size, "SLURM_LOCALID", nullptr};
  LaunchEnvironment environment;
  environment.launcher = Launcher::kSlurm;
  read_ranks(variables, names, environment);
  if (environment.alone()) return LaunchEnvironment{};
  environment.local_rank = variables.required(names.local_rank, 0, environment.world_size - 1, size);
  environment.local_world_size = slurm_local_size(variables, environment);
  read_master(variables, environment);
  if (environment.master_addr.empty()) {
    const char* const nodes = variables.first_of("SLURM_STEP_NODELIST", "SLURM_NODELIST");
    const auto host = first_host(variables.text(nodes));
    if (!host && variables.has(nodes))
      throw UsageError(variables.quote(nodes), ": not a list of hosts; give MASTER_ADDR, the host of rank 0");
    environment.master_addr = host.value_or("");
  }
  if (environment.master_port == 0) environment.master_port = slurm_port(variables);
  require_master(environment, names);
  return environment;
}

}  // namespace

LaunchEnvironment read_launch_environment(const std::vector<std::string>& environment) {
  const Variables variables(environment);
  if (variables.has(kTorchNames.rank) || variables.has(kTorchNames.size)) return find_in_torch(variables);
  if (variables.has(kOpenMpiNames.rank) || variables.has(kOpenMpiNames.size))
    return find_in(variables, kOpenMpiNames, Launcher::kOpenMpi);
  const char* const size = slurm_size(variables);
  return size != nullptr ? find_in_slurm(variables, size) : LaunchEnvironment{};
}

}  // namespace dtopp::launch
