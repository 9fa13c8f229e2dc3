// Implements `dtopp new`: writes the configuration of a language model of a given size for given data.
#include "cli/commands.h"
#include "cli/option_checks.h"
#include "dtopp/data/text/token_file.h"
#include "dtopp/data/text/tokenizer.h"
#include "dtopp/device/available_memory.h"
#include "dtopp/device/device.h"
#include "dtopp/models/make_model.h"
#include "dtopp/plan/new_run.h"
#include "dtopp/plan/plan.h"
#include "dtopp/study/runner.h"

namespace dtopp::cli {
namespace {

struct NewOptions {
  std::string config;
  int64_t active = 0, tokens = 0, sequence = 1024, memory = 0;
  std::string experts = "8/64";
  std::vector<std::string> data, validation;
  std::string like;
  bool force = false;
};

// For transform(): replaces "10M" by 10000000. Each unit stands for a power of 1000.
CLI::Validator amount(const std::vector<std::string>& units) {
  return {[units](std::string& text) -> std::string {
            constexpr double kMost = 1e15;
            double number = 0;
            const char* const end = text.data() + text.size();
            const auto [stop, error] = std::from_chars(text.data(), end, number);
            if (error != std::errc()) return "must be a number such as 10" + units[1] + ", is " + text;
            const auto unit = std::ranges::find(units, std::string(stop, end));
            if (unit == units.end())
              return text + " has an unknown unit; known: " + joined({units.begin() + 1, units.end()}, ", ");
            number *= std::pow(1000.0, static_cast<double>(unit - units.begin()));
            if (!(number >= 1 && number <= kMost)) return "must be from 1 to 1e15, is " + text;
            text = std::to_string(std::llround(number));
            return "";
          },
          ""};
}
CLI::Validator count() { return amount({"", "k", "M", "B", "T"}); }

plan::NewRunSize size_of(const NewOptions& options) {
  plan::NewRunSize size{.active = options.active, .sequence_length = options.sequence};
  if (options.tokens > 0) size.tokens = options.tokens;
  const size_t slash = std::min(options.experts.find('/'), options.experts.size() - 1);
  const auto experts = whole_number(options.experts.substr(0, slash)),
             all = whole_number(options.experts.substr(slash + 1));
  if (!experts || !all) throw UsageError("--experts: must be K/E such as 8/64, is ", options.experts);
  // The only gate of K = 1 is 1, so its router would have no gradient (benchmarks/studies/balance.md).
  if (*experts < 2 || *experts > *all)
    throw UsageError("--experts: K of K/E must lie in [2, E], is ", options.experts);
  size.experts = *experts;
  size.num_experts = *all;
  return size;
}

std::string held_out_beside(const std::string& data) {
  const fs::path folder = without_trailing_slash(data), beside = folder.parent_path() / "validation";
  if (folder.filename() != "train" || path_kind(beside) != PathKind::kDirectory)
    throw UsageError("--validation: give the folder of held-out text that belongs to ", data);
  return beside;
}

std::optional<plan::NewRunData> read_data(const NewOptions& options) {
  if (options.data.empty()) return std::nullopt;
  plan::NewRunData read;
  const auto tokens_of = [](const std::vector<std::string>& paths, std::vector<config::DataSource>& sources) {
    uint64_t tokens = 0;
    for (const std::string& path : paths) {
      tokens += data::TokenStream::open(path, data::Verify::kSizes).size();
      sources.push_back({path});
    }
    return tokens;
  };
  read.train_tokens = tokens_of(options.data, read.train);
  std::vector<std::string> validation = options.validation;
  if (validation.empty())
    for (const std::string& data : options.data) validation.push_back(held_out_beside(data));
  read.validation_tokens = tokens_of(validation, read.validation);
  const auto tokenizer = data::tokenizer_beside(options.data.front());
  if (!tokenizer)
    throw UsageError("--data: ", options.data.front(),
                     " has no tokenizer.json; give a folder that `dtopp prepare text` wrote");
  read.vocab_size = data::Tokenizer::load(*tokenizer).vocab_size();
  return read;
}

void print_time(const config::RunConfig& config, const plan::Plan& plan, const at::Device& device) {
  const at::ScalarType type = device::compute_type(config.training.precision, device);
  const double rate = device::measure_matrix_rate(at::device(device).dtype(type));
  const double share = study::ReachedShare().share;
  const double seconds = study::flops_of(config, plan.flops_per_token, plan.tokens_per_step) / (rate * share);
  std::printf("%-24s%14s   with validation, on %s: assumed %.0f %% of %s FLOP/s, measured in %s\n",
              "expected time", format_duration(seconds).c_str(), device::describe_device(device).c_str(),
              100 * share, format_count(rate).c_str(), type == at::kBFloat16 ? "bf16" : "fp32");
}

void write_new_run(const NewOptions& options) {
  if (is_there(options.config) && !options.force)
    throw UsageError(options.config, ": exists; choose another name, or replace it with --force");
  if (options.data.empty() && options.like.empty())
    throw UsageError("--data: give the folder that `dtopp prepare text` wrote");
  const plan::NewRunSize size = size_of(options);
  std::optional<config::RunConfig> like;
  if (!options.like.empty()) like = config::load_model_run_config(options.like, {});
  const std::optional<plan::NewRunData> data = read_data(options);
  plan::NewRun run = like ? plan::scaled_run(*like, options.like, size, data) : plan::new_run(size, *data);
  const std::string name = fs::path(options.config).stem();
  run.config.name = name;
  run.config.output = "runs/" + name;
  run.reasons["name"] = "in messages and reports";
  run.reasons["output"] = "the folder of the run";

  const at::Device device = device::compute_device(
      run.config.training.device == config::Device::kCpu ? config::Device::kCpu : config::Device::kAuto, "");
  device::PlanDevice machine{device.is_cuda() ? "memory of the GPU" : "memory", device::available_memory()};
  if (device.is_cuda()) machine.memory_bytes = *device::free_device_memory(device);
  if (options.memory > 0) machine = {"--memory", static_cast<uint64_t>(options.memory)};
  const config::Device kind = device.is_cuda() ? config::Device::kCuda : config::Device::kCpu;
  plan::fit_micro_batch(run, kind, machine.memory_bytes);

  const std::string text =
      "# Written by `dtopp new`; docs/how-to/new-run.md explains the rules. Next: dtopp train " +
      options.config + "\n" + plan::commented_yaml(run, "as in " + options.like);
  const config::RunConfig config = config::parse_run_config(text, options.config);
  const plan::Plan plan = plan::make_plan(config, {}, kind);
  if (data) models::open_training_data(config, data::Verify::kSizes);  // refuses data that do not fit
  write_file_atomically(options.config, text);
  std::printf("%s", plan::plan_table(plan, config, {machine, {}, config.training.micro_batch_size}).c_str());
  print_time(config, plan, device);
  std::printf("\ndtopp train %s\n", options.config.c_str());
}

}  // namespace

void add_new(CLI::App& app) {
  auto options = std::make_shared<NewOptions>();
  CLI::App* command = app.add_subcommand(
      "new", "Write the configuration of a language model for a size and data (docs/how-to/new-run.md)");
  add_checked(*command, "config", options->config, "YAML file to write", in_existing_folder())->required();
  command->add_option("--active", options->active, "active parameters, such as 10M or 1.5B")
      ->required()
      ->transform(count())
      ->type_name("COUNT");
  command
      ->add_option("--data", options->data,
                   "folder that `dtopp prepare text` wrote; may be repeated. Required without --like")
      ->allow_extra_args(false);
  CLI::Option* validation =
      command
          ->add_option("--validation", options->validation,
                       "folder of held-out text; may be repeated (default: the folder validation beside the "
                       "folder train of --data)")
          ->allow_extra_args(false);
  validation->needs("--data");
  command
      ->add_option("--tokens", options->tokens,
                   "tokens to train on, such as 200M (default: 20 per active parameter, at most four passes "
                   "over the data)")
      ->transform(count())
      ->type_name("COUNT");
  CLI::Option* experts =
      command->add_option("--experts", options->experts, "K/E: each token uses K of E experts on average")
          ->capture_default_str();
  CLI::Option* sequence =
      add_number(*command, "--sequence", options->sequence, "tokens per sequence", positive<int64_t>());
  command
      ->add_option("--memory", options->memory,
                   "memory for training, such as 24GB (default: what is free on this machine)")
      ->transform(amount({"", "kB", "MB", "GB", "TB"}))
      ->type_name("BYTES");
  command
      ->add_option("--like", options->like,
                   "YAML configuration file to scale: with its ratios, router and recipe")
      ->excludes(experts)
      ->excludes(sequence);
  command->add_flag("--force", options->force, "replace an existing file");
  command->callback([options] { write_new_run(*options); });
}

}  // namespace dtopp::cli
