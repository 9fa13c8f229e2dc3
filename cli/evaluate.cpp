#include "cli/evaluate.h"

#include <cstdio>
#include <optional>

#include <nlohmann/json.hpp>

#include "cli/option_checks.h"
#include "cli/ranks.h"
#include "cli/standard_streams.h"
#include "cli/stop_signals.h"
#include "cli/verbs.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/base/manifest.h"
#include "dtopp/base/path_kind.h"
#include "dtopp/base/stop_scope.h"
#include "dtopp/device/compute_device.h"
#include "dtopp/distributed/groups/rank_agreement.h"
#include "dtopp/inference/expert_budget.h"

namespace dtopp::cli {

void add_evaluate(CLI::App& app) {
  CLI::App* verb = app.add_subcommand(
      "evaluate", "Evaluate a checkpoint: benchmark tasks, loss on text or images, use of experts");
  verb->require_subcommand(1);
  add_evaluate_tasks(*verb);
  add_evaluate_text(*verb);
  add_evaluate_experts(*verb);
  add_evaluate_images(*verb);
}

void add_evaluate_options(CLI::App& verb, EvaluateOptions& options) {
  verb.add_option("--output", options.output,
                  "also write the results as JSON to this file; in a folder, to a file whose name contains "
                  "the texts or images, the checkpoint's step, the budget and the precision")
      ->check(in_existing_folder());
  verb.add_option("--batch-size", options.batch_size, "sequences or images per batch")
      ->capture_default_str()
      ->check(positive<int64_t>());
  verb.add_flag("--json", options.json, "print the results as one JSON object");
  add_processes_option(verb, options.processes);
}

void add_text_option(CLI::App& verb, std::vector<std::string>& texts) {
  verb.add_option("--text", texts,
                  "text file (.jsonl[.gz|.zst] has one document per line, any other file is one document) or "
                  "folder of tokens; repeat it to measure several texts, together and each on its own")
      ->allow_extra_args(false)
      ->required();
}

void add_sweep_option(CLI::App& verb, std::vector<double>& targets,
                      const std::vector<std::string>& excluded) {
  CLI::Option* option =
      verb.add_option("--sweep-target", targets,
                      "measure at each of these numbers of active experts per token, e.g. 2,4,8,12")
          ->delimiter(',')
          ->check(positive<double>());
  for (const std::string& name : excluded) option->excludes(verb.get_option(name));
}

void require_sweep(const std::vector<double>& targets, const config::RunConfig& config) {
  for (const double target : targets) inference::require_target(config, target, "--sweep-target");
}

void evaluate_on_ranks(const EvaluateOptions& options,
                       const std::function<void(distributed::Collectives&)>& measure) {
  const launch::LaunchEnvironment environment = own_launch_environment();
  if (options.processes > 0) {
    device::require_device(options.inference.device, "--device");
    end_process(run_processes(environment, {.processes = options.processes}));
  }
  run_rank(environment, "lower --batch-size", [&](distributed::Cluster& cluster) {
    std::optional<StopScope> begins(stop_token());
    cluster.join(std::chrono::seconds(config::ParallelConfig{}.timeout));
    const distributed::ProcessGroups& groups = cluster.connect(at::kCPU, /*ep_size=*/1);
    cluster.begin(0, "evaluation");
    begins.reset();
    measure(*groups.world);
  });
}

checkpoint::Checkpoint open_shared_checkpoint(const EvaluateOptions& options, config::ModelType type,
                                              distributed::Collectives& ranks) {
  const StopScope begins(stop_token());
  if (ranks.size() == 1) return open_named_checkpoint(options.inference, type);
  if (!device::compute_device(options.inference.device, "--device").is_cpu())
    throw UsageError(
        "--device: evaluation with several ranks needs cpu; set --device cpu, or start one process");
  if (ranks.rank() > 0)
    return checkpoint::Checkpoint(distributed::broadcast_bytes(ranks, "", /*root=*/0, "start"),
                                  checkpoint::CheckpointUse::kInference);
  checkpoint::Checkpoint checkpoint = open_named_checkpoint(options.inference, type);
  distributed::broadcast_bytes(ranks, checkpoint.path().string(), /*root=*/0, "start");
  return checkpoint;
}

void require_same_work(const EvaluateOptions& options, const checkpoint::Checkpoint& checkpoint,
                       const nlohmann::ordered_json& amount, distributed::Collectives& ranks) {
  const nlohmann::ordered_json work = {{"checkpoint", hash_file(checkpoint.path() / kManifestName)},
                                       {"batch_size", options.batch_size},
                                       {"precision", c10::toString(compute_type(options.inference))},
                                       {"amount", amount}};
  if (const auto difference = distributed::find_difference(dump_json(work), ranks))
    throw distributed::RanksDiffer(ExitStatus::kUsage,
                                   difference->name() +
                                       " would not measure the same as rank 0; start all ranks "
                                       "with the same checkpoint, data and options");
}

eval::EvaluationText open_texts(const EvaluateOptions& options, const std::vector<std::string>& paths,
                                const checkpoint::Checkpoint& checkpoint, const config::ModelConfig& config) {
  const StopScope begins(stop_token());
  std::optional<eval::EvaluationText> all;
  for (const std::string& path : paths) {
    eval::EvaluationText text =
        eval::is_token_data(path)
            ? eval::EvaluationText(path, config.vocab_size)
            : eval::EvaluationText(path, inference::load_tokenizer(checkpoint, options.inference.tokenizer,
                                                                   config.vocab_size));
    if (all)
      all->append(std::move(text));
    else
      all.emplace(std::move(text));
  }
  if (paths.size() > 1) all->source_names();  // fails early if a path occurs twice
  return std::move(*all);
}

tasks::EvaluatedModel evaluated_model(const EvaluateOptions& options,
                                      const checkpoint::Checkpoint& checkpoint, const moe::Routing& routing) {
  tasks::EvaluatedModel model{checkpoint.state().step, options.inference.target_experts};
  model.in_bf16 = compute_type(options.inference) == at::kBFloat16;
  if (routing.router) model.p = routing.router->metric("threshold");
  return model;
}

std::string kind_of(std::string kind, const std::vector<std::string>& paths) {
  constexpr size_t kLongest = 120;  // bytes; a file name may have 255
  for (const std::string& path : paths) {
    std::filesystem::path name =
        without_trailing_slash(std::filesystem::path(path).lexically_normal()).filename();
    if (name.extension() == ".gz" || name.extension() == ".zst") name = name.stem();
    kind += (&path == paths.data() ? "-" : "+") + name.stem().string();
  }
  if (kind.size() <= kLongest) return kind;
  size_t end = kLongest;
  while ((static_cast<unsigned char>(kind[end]) & 0xC0U) == 0x80U) --end;  // within a UTF-8 character
  return kind.substr(0, end);
}

std::filesystem::path output_file(const EvaluateOptions& options, const std::string& kind,
                                  const tasks::EvaluatedModel& model, const distributed::Collectives& ranks,
                                  const nlohmann::ordered_json& measured) {
  if (options.output.empty() || ranks.rank() > 0) return {};
  return tasks::results_file(options.output, kind, model, measured);
}

nlohmann::ordered_json labeled(const tasks::EvaluatedModel& model, const nlohmann::ordered_json& results) {
  nlohmann::ordered_json json = tasks::to_json(model);
  json.update(results);
  return json;
}

void report(const EvaluateOptions& options, const std::filesystem::path& file,
            const nlohmann::ordered_json& json, const std::string& table) {
  if (!file.empty()) write_file_atomically(file, dump_json(json, 2) + "\n");
  std::printf("%s", options.json ? (dump_json(json) + "\n").c_str() : table.c_str());
}

}  // namespace dtopp::cli
