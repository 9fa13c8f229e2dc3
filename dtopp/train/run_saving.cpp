#include "dtopp/train/run_saving.h"

#include "dtopp/moe/router_state.h"
#include "dtopp/runs/run_directory.h"

namespace dtopp::train {
namespace {

class RanksOfRun final : public checkpoint::SavingRanks {
 public:
  RanksOfRun(const optim::ParameterStore& parameters, distributed::Collectives& ranks)
      : parameters_(parameters), ranks_(ranks) {}

  int64_t rank() const override { return ranks_.rank(); }
  int64_t size() const override { return ranks_.size(); }
  std::vector<std::string> gather(const std::string& text) override {
    return distributed::gather_bytes(ranks_, text, "save");
  }
  void collect(const std::vector<checkpoint::TensorByteRange>& by_rank, const TakeBytes& take) override {
    parameters_.collect_saved(by_rank, take);
  }
  void check(const std::exception_ptr& error) override {
    const std::vector<std::string> failed = gather(error ? "failed" : "");
    if (error) std::rethrow_exception(error);
    for (size_t rank = 0; rank < failed.size(); ++rank)
      if (!failed[rank].empty())
        throw distributed::RankLost("rank " + std::to_string(rank) +
                                    " could not save its part of the checkpoint");
  }

 private:
  const optim::ParameterStore& parameters_;
  distributed::Collectives& ranks_;
};

}  // namespace

std::filesystem::path save_run(const Trainer& trainer, const config::RunConfig& config,
                               distributed::Collectives& ranks) {
  const optim::ParameterStore& parameters = trainer.parameters();
  const ops::NamedTensors router =
      trainer.routing().router ? moe::host_state(*trainer.routing().router) : ops::NamedTensors();
  const checkpoint::CheckpointContents contents{
      trainer.state(),          parameters.parameter_sources(), parameters.slot_sources(),
      config::to_yaml(config),  trainer.data().tokenizer_json,  trainer.data().images_json,
      parameters.ema_sources(), moe::router_sources(router)};
  RanksOfRun saving(parameters, ranks);
  return checkpoint::save_checkpoint(runs::checkpoints_of(config.output), contents, config.checkpoint.keep,
                                     saving);
}

}  // namespace dtopp::train
