// Implements `dtopp serve`: completes texts over HTTP.
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/inference.h"
#include "cli/option_checks.h"
#include "dtopp/base/errors.h"
#include "dtopp/data/text/prepare_text.h"
#include "dtopp/distributed/failure.h"
#include "dtopp/inference/expert_budget.h"
#include "dtopp/serve/service.h"

namespace dtopp::cli {
namespace {

constexpr auto kIdleTime = std::chrono::milliseconds(200);  // between two looks for a signal
constexpr int64_t kCacheBytes = int64_t{1} << 30;           // default of --kv-tokens

struct ServeOptions {
  InferenceOptions inference;
  std::string calibration, host = "127.0.0.1", token_file, name;
  bool calibrate = false;
  uint16_t port = 8000;
  int64_t kv_tokens = 0, timeout = 600;
  size_t batch = 64, queue = 256, body_kilobytes = 1024;
};

// Returns the token that clients must send. Throws UsageError if one is needed and none is given.
std::string token_of(const ServeOptions& options) {
  if (options.token_file.empty()) {
    if (options.host == "127.0.0.1" || options.host == "::1") return {};
    throw UsageError(
        "--host ", options.host,
        ": others can reach this address; pass --token-file FILE, whose first line clients must send");
  }
  const std::string text = read_file(options.token_file, uint64_t{1} << 16);
  std::string token = text.substr(0, text.find('\n'));
  if (token.ends_with('\r')) token.pop_back();
  if (token.empty()) throw UsageError("--token-file ", options.token_file, ": its first line is empty");
  return token;
}

// The solved budgets, and the text on which more of them are solved.
struct Budgets {
  inference::KeptBudgets kept{};
  Tensor windows_BL{};  // undefined: no more are solved
};

// Returns the windows on which budgets are solved; undefined if there is no text.
Tensor calibration_windows(const ServeOptions& options, const checkpoint::Checkpoint& checkpoint,
                           const config::ModelConfig& config, const data::Tokenizer& tokenizer) {
  if (!options.calibration.empty())
    return inference::solving_windows(data::encode_file(options.calibration, tokenizer),
                                      config.sequence_length, options.calibration);
  const auto validation = checkpoint.config().data.validation;
  if (validation.empty() || !fs::exists(validation.front().path)) return {};
  return target_windows(options.inference, checkpoint, config);
}

// Returns the kept budgets. Those of another text than --calibration are dropped. Without --calibration,
// budgets are added only if the run's validation data is their text.
Budgets open_budgets(const ServeOptions& options, const inference::InferenceModel& model,
                     const checkpoint::Checkpoint& checkpoint, const data::Tokenizer& tokenizer) {
  const size_t possible = inference::whole_budgets(model.config).size();
  if (possible == 0) {
    if (options.calibrate || !options.calibration.empty())
      throw UsageError(
          "--calibration: the model has no routing threshold, so its number of experts is fixed");
    return {};
  }
  const auto kept = inference::read_budgets(checkpoint, model.config);
  const bool is_complete = kept && kept->thresholds.size() == possible;
  if (is_complete && options.calibration.empty()) return {.kept = *kept};
  const Tensor windows_BL = calibration_windows(options, checkpoint, model.config.model, tokenizer);
  const std::string text = windows_BL.defined() ? inference::hash_of_windows(windows_BL) : "";
  if (kept && kept->text == text) return {.kept = *kept, .windows_BL = windows_BL};
  if (windows_BL.defined() && (!kept || !options.calibration.empty()))
    return {.kept = {checkpoint.hash(), text, {}}, .windows_BL = windows_BL};
  if (options.calibrate)
    throw UsageError("--calibrate: pass --calibration TEXT, on which the thresholds are solved");
  return {.kept = kept.value_or(inference::KeptBudgets())};
}

void solve(const inference::InferenceModel& model, const checkpoint::Checkpoint& checkpoint, int64_t experts,
           Budgets& budgets) {
  print_message(
      format("solving the threshold of %ld experts on %ld tokens", experts, budgets.windows_BL.numel()));
  const double begin = steady_seconds();
  const moe::Routing solved =
      inference::solve_thresholds(model, budgets.windows_BL, static_cast<double>(experts));
  budgets.kept.thresholds[experts] = solved.router->metric("threshold");
  print_message(format("solved the threshold of %ld experts in %.1f s", experts, steady_seconds() - begin));
  try {
    inference::write_budgets(checkpoint, budgets.kept);
  } catch (const DataError& error) {
    print_message(std::string("warning: the threshold is not kept: ") + error.what());
  }
}

int64_t cache_tokens(const ServeOptions& options, const inference::InferenceModel& model) {
  if (options.kv_tokens > 0) return options.kv_tokens;
  const config::ModelConfig& config = model.config.model;
  const int64_t bytes = config.num_layers * 2 * config.num_kv_heads() * config.head_size() *
                        static_cast<int64_t>(model.model.embed_VD().element_size());
  return std::max(kCacheBytes / bytes, config.sequence_length + models::kCacheBlock);
}

// Computes texts on this thread, while a second one serves and a third one calls `solve` for each budget that
// requests wait for.
template <class Solve>
void run(http::Server& server, serve::Service& service, inference::Scheduler& scheduler, const Solve& solve) {
  std::atomic<bool> is_over = false, has_failed = false;
  std::exception_ptr failure;
  const auto begin = [&](auto work) {
    return std::thread([&, work] {
      try {
        work();
      } catch (const StoppedEarly&) {  // no request waits for the budget any more
      } catch (...) {
        if (!has_failed.exchange(true)) failure = std::current_exception();
      }
    });
  };
  std::thread serving = begin([&] { server.run(service, StopToken(is_over)); });
  std::thread solving = begin([&] {
    const StopToken stop(is_over);
    const StopScope scope(stop);
    while (!is_over)
      if (const auto budget = scheduler.missing_budget(kIdleTime))
        scheduler.add_budget(*budget, solve(*budget));
  });
  const auto end = [&] {
    is_over = true;
    serving.join();
    solving.join();
  };
  try {
    while (!has_failed && !(stop_requested() && scheduler.close_if_idle())) scheduler.step(kIdleTime);
  } catch (...) {
    end();
    throw;
  }
  end();
  if (failure) std::rethrow_exception(failure);
}

void serve_model(const ServeOptions& options) {
  const std::string token = token_of(options);
  const checkpoint::Checkpoint checkpoint =
      open_named_checkpoint(options.inference, config::ModelType::kLanguageModel);
  const inference::InferenceModel model = load_model(options.inference, checkpoint);
  const config::ModelConfig& config = model.config.model;
  const data::Tokenizer tokenizer =
      inference::load_tokenizer(checkpoint, options.inference.tokenizer, config.vocab_size);
  stop_on_signals();
  const std::vector<int64_t> possible = inference::whole_budgets(model.config);
  Budgets budgets = open_budgets(options, model, checkpoint, tokenizer);
  const auto is_kept = [&](int64_t experts) { return budgets.kept.thresholds.contains(experts); };
  std::set<int64_t> targets;
  for (const int64_t experts : possible) {
    const StopScope scope(stop_token());
    if (options.calibrate && !is_kept(experts)) solve(model, checkpoint, experts, budgets);
    if (budgets.windows_BL.defined() || is_kept(experts)) targets.insert(experts);
  }
  const serve::ServedModel served{.name = options.name.empty() ? model.config.name : options.name,
                                  .sequence_length = config.sequence_length,
                                  .vocab_size = tokenizer.vocab_size(),
                                  .end_of_text = tokenizer.end_of_text(),
                                  .num_experts = config.is_dense() ? 0 : config.num_experts,
                                  .smallest_budget = possible.empty() ? 0 : possible.front(),
                                  .largest_budget = possible.empty() ? 0 : possible.back(),
                                  .most_choices = std::min<size_t>(options.queue, 128),
                                  .budgets = targets};
  http::Server server(options.host, options.port,
                      {.connections = options.batch + options.queue + 64,
                       .body_bytes = options.body_kilobytes << 10,
                       .answer = std::chrono::seconds(options.timeout)},
                      "--port");
  if (targets.size() < possible.size())
    print_message(
        targets.empty()
            ? "requests cannot set target_experts: pass --calibration TEXT"
            : "requests can set only the target_experts that are kept: pass --calibration TEXT for others");
  // The scheduler's requests use what is declared before it.
  serve::Metrics metrics;
  inference::Scheduler scheduler(model, {options.batch, options.queue, cache_tokens(options, model)});
  for (const auto& [experts, thresholds] : budgets.kept.thresholds)
    scheduler.add_budget(experts, inference::make_budget_router(model, thresholds));
  serve::Service service(served, tokenizer, scheduler, metrics, token, stop_token());
  const bool is_v6 = options.host.find(':') != std::string::npos;
  std::printf("http://%s:%d/\n", (is_v6 ? "[" + options.host + "]" : options.host).c_str(), server.port());
  flush_standard_output();
  run(server, service, scheduler, [&](int64_t experts) {
    solve(model, checkpoint, experts, budgets);
    return inference::make_budget_router(model, budgets.kept.thresholds.at(experts));
  });
}

}  // namespace

void add_serve(CLI::App& app) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command =
      app.add_subcommand("serve", "Complete texts over HTTP, with the interface of OpenAI's completions");
  add_checkpoint_options(*command, options->inference);
  add_precision_option(*command, options->inference);
  command->add_option("--tokenizer", options->inference.tokenizer,
                      "tokenizer.json file, for a checkpoint without one");
  command->add_option(
      "--calibration", options->calibration,
      "text file on which the threshold of each target_experts is solved at its first request; it "
      "is kept in the checkpoint's budgets.json (default: the run's validation data)");
  command->add_flag("--calibrate", options->calibrate,
                    "solve the thresholds of all target_experts before the server opens");
  command
      ->add_option("--host", options->host,
                   "address to listen on; any but 127.0.0.1 and ::1 needs --token-file")
      ->capture_default_str();
  add_number(*command, "--port", options->port, "port to listen on; 0: any free one", between(0, 65535));
  command->add_option("--token-file", options->token_file,
                      "file whose first line clients must send as Authorization: Bearer LINE");
  command->add_option("--name", options->name, "name of the model in requests (default: the run's name)");
  add_number(*command, "--max-batch", options->batch, "sequences that are computed together",
             between(1, 4096));
  add_number(*command, "--queue", options->queue, "sequences that wait; further ones are answered with 429",
             between(1, 65536));
  add_number(*command, "--kv-tokens", options->kv_tokens,
             "tokens in the key-value caches of all running sequences; 0: 1 GiB of them",
             not_negative<int64_t>());
  add_number(*command, "--max-body", options->body_kilobytes, "KiB of a request's body", between(1, 1 << 20));
  add_number(*command, "--timeout", options->timeout, "seconds from a request to the end of its answer",
             between(1, 86400));
  command->callback([options] {
    distributed::with_memory_advice("lower --kv-tokens or --max-batch", [&] { serve_model(*options); });
  });
}

}  // namespace dtopp::cli
