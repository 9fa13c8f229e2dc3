#include "dtopp/eval/in_training/probes.h"

#include <limits>

#include "dtopp/base/errors.h"
#include "dtopp/eval/in_training/training_model.h"
#include "dtopp/eval/scoring.h"
#include "dtopp/tasks/results.h"
#include "dtopp/tasks/task_requests.h"

namespace dtopp::eval {
namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

class Probes final : public train::Periodic {
 public:
  Probes(const config::RunConfig& config, const std::vector<tasks::Task>& tasks)
      : config_(config), tokenizer_(training_tokenizer(config.data, "validation.tasks", "[]")) {
    const config::ValidationConfig& validation = config.validation;
    const int64_t limit =
        validation.task_limit > 0 ? validation.task_limit : std::numeric_limits<int64_t>::max();
    for (const tasks::Task& task : tasks)
      tasks_.push_back(tasks::prepare_requests(task, validation.task_data, tokenizer_, limit));
    tasks::take_out_long_tasks(tasks_, joined(validation.tasks), config.model.sequence_length);
  }

  bool is_due(const checkpoint::TrainingState& state, bool is_last) const override {
    if (state.last_validation_step == state.step) return false;
    return is_last || state.step % config_.validation.every == 0;
  }

  std::optional<train::Measurements> run(train::Trainer& trainer, const StopToken& stop) override {
    const at::NoGradGuard no_grad;
    const inference::InferenceModel model = training_model(config_, trainer, tokenizer_);
    train::Measurements measured;
    for (const tasks::TaskRequests& requests : tasks_) {
      const auto share = accuracy(model, requests, trainer.ranks(), stop);
      if (!share) return std::nullopt;
      measured.emplace_back(std::string(requests.task.name) + "/accuracy", *share);
    }
    return measured;
  }

 private:
  // Returns nullopt if stopped, NaN if a log probability is not finite.
  std::optional<double> accuracy(const inference::InferenceModel& model, const tasks::TaskRequests& requests,
                                 distributed::Collectives& ranks, const StopToken& stop) const {
    const int64_t batch_tokens = config_.training.micro_batch_size * config_.model.sequence_length;
    inference::Watch watch(stop);
    const auto scored = score_task(model, tokenizer_, requests, batch_tokens, ranks, watch);
    if (!scored) return std::nullopt;
    std::vector<tasks::Tally> tallies;
    try {
      for (size_t i = 0; i < requests.data_sets.size(); ++i)
        tallies.push_back(
            tasks::tally(requests.data_sets[i], tasks::judge_all(requests, i, (*scored)[i].scores)));
    } catch (const NumericalError&) {  // training continues and may recover
      return std::numeric_limits<double>::quiet_NaN();
    }
    return tasks::summarize(requests.task, tallies).accuracy;
  }

  config::RunConfig config_;
  data::Tokenizer tokenizer_;
  std::vector<tasks::TaskRequests> tasks_;
};

}  // namespace

std::unique_ptr<train::Periodic> make_probes(const config::RunConfig& config) {
  if (config.validation.tasks.empty() || config.validation.every == 0) return nullptr;
  return std::make_unique<Probes>(config, tasks::select_tasks(joined(config.validation.tasks)));
}

}  // namespace dtopp::eval
