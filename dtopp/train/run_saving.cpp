#include "dtopp/train/run_saving.h"

#include "dtopp/moe/router_state.h"
#include "dtopp/runs/run_directory.h"

namespace dtopp {
namespace {

class RanksOfRun final : public SavingRanks {
 public:
  RanksOfRun(const ParameterStore& parameters, Collectives& ranks) : parameters_(parameters), ranks_(ranks) {}

  int64_t rank() const override { return ranks_.rank(); }
  int64_t size() const override { return ranks_.size(); }
  std::vector<std::string> gather(const std::string& text) override {
    return gather_bytes(ranks_, text, "save");
  }
  void collect(const std::vector<TensorByteRange>& by_rank, const TakeBytes& take) override {
    parameters_.collect_saved(by_rank, take);
  }
  void check(const std::exception_ptr& error) override {
    const std::vector<std::string> failed = gather(error ? "failed" : "");
    if (error) std::rethrow_exception(error);
    for (size_t rank = 0; rank < failed.size(); ++rank)
      if (!failed[rank].empty())
        throw RankLost("rank " + std::to_string(rank) + " could not save its part of the checkpoint");
  }

 private:
  const ParameterStore& parameters_;
  Collectives& ranks_;
};

}  // namespace

std::filesystem::path save_run(const Trainer& trainer, const RunConfig& config, Collectives& ranks) {
  const ParameterStore& parameters = trainer.parameters();
  const NamedTensors router =
      trainer.routing().router ? host_state(*trainer.routing().router) : NamedTensors();
  const CheckpointContents contents{
      trainer.state(),          parameters.parameter_sources(), parameters.slot_sources(),
      to_yaml(config),          trainer.data().tokenizer_json,  trainer.data().images_json,
      parameters.ema_sources(), router_sources(router)};
  RanksOfRun saving(parameters, ranks);
  return save_checkpoint(checkpoints_of(config.output), contents, config.checkpoint.keep, saving);
}

}  // namespace dtopp
