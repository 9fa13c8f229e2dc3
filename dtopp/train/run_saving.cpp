#include "dtopp/train/run_saving.h"

#include <chrono>
#include <utility>

#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include "dtopp/base/format.h"
#include "dtopp/base/progress.h"
#include "dtopp/distributed/rank_agreement.h"
#include "dtopp/moe/router_state.h"

namespace dtopp::train {
namespace {

// Training comes first, but on a busy machine the thread must not starve: a stop may wait for it.
constexpr int kNiceness = 5;

// A shorter wait for the previous checkpoint is not worth a warning.
constexpr double kNoticeableSeconds = 1;

// A pending save that was abandoned. All its ranks throw it at the same piece.
struct Abandoned : Stopped {
  using Stopped::Stopped;
};

class RanksOfRun final : public checkpoint::SavingRanks {
 public:
  RanksOfRun(const optim::ParameterStore& parameters, const std::vector<at::Tensor>& shards,
             distributed::Collectives& ranks, const std::atomic<bool>* abandoned)
      : parameters_(parameters), shards_(shards), ranks_(ranks), abandoned_(abandoned) {}

  int64_t rank() const override { return ranks_.rank(); }
  int64_t size() const override { return ranks_.size(); }
  std::vector<std::string> gather(const std::string& text) override {
    return distributed::gather_bytes(ranks_, text, "save");
  }
  void collect(const std::vector<checkpoint::TensorByteRange>& by_rank, const TakeBytes& take) override {
    if (abandoned_ != nullptr && distributed::any_of(ranks_, *abandoned_))
      throw Abandoned("the checkpoint was abandoned");
    parameters_.collect_saved(by_rank, shards_, ranks_, take);
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
  const std::vector<at::Tensor>& shards_;
  distributed::Collectives& ranks_;
  const std::atomic<bool>* abandoned_;  // null: training waits for this save
};

// The router's state, on a CPU without a copy.
ops::NamedTensors router_of(const Trainer& trainer) {
  const auto router = trainer.routing().router;
  return router ? moe::host_state(*router) : ops::NamedTensors();
}

// Copies everything but the tensors; `router` must live as long as the result.
checkpoint::CheckpointContents contents_of(const Trainer& trainer, const config::RunConfig& config,
                                           const ops::NamedTensors& router) {
  const optim::ParameterStore& parameters = trainer.parameters();
  return {trainer.state(),          parameters.parameter_sources(), parameters.slot_sources(),
          config::to_yaml(config),  trainer.data().tokenizer_json,  trainer.data().images_json,
          parameters.ema_sources(), moe::router_sources(router)};
}

// Makes this thread one of low priority whose operators start no further threads.
void yield_to_training() {
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness);
  at::get_num_threads();  // torch sets the number of a new thread at its first use
  omp_set_num_threads(1);
}

}  // namespace

RunSaver::RunSaver(const Trainer& trainer, const config::RunConfig& config,
                   const distributed::ProcessGroups& groups, const runs::RunDirectory& directory,
                   const std::optional<runs::MetricsWriter>& metrics, ConsoleLog log)
    : trainer_(trainer),
      config_(config),
      groups_(groups),
      directory_(directory),
      metrics_(metrics),
      log_(log) {}

RunSaver::~RunSaver() {
  abandon();
  if (pending_.valid()) pending_.wait();
}

void RunSaver::allocate_snapshot(uint64_t bytes, uint64_t room) {
  const auto text = [](uint64_t count) { return format_bytes(static_cast<double>(count)); };
  const bool fits = bytes <= room;
  if (!fits && config_.checkpoint.asynchronous == config::Asynchronous::kTrue)
    throw ResourceError("checkpoint.asynchronous: its snapshot needs " + text(bytes) + " of memory and " +
                        text(room) + " are left; set it to false");
  if (distributed::any_of(*groups_.world, !fits))
    return log_.message("training waits while checkpoints are written: no memory for a snapshot of " +
                        text(bytes));
  snapshot_.emplace(trainer_.parameters().saved_shards());
}

RunSaver::Written RunSaver::write(const checkpoint::CheckpointContents& contents,
                                  const std::vector<at::Tensor>& shards, distributed::Collectives& ranks,
                                  const std::atomic<bool>* abandoned) const {
  if (metrics_) metrics_->sync();  // a run resumed from this checkpoint does not write these lines again
  RanksOfRun saving(trainer_.parameters(), shards, ranks, abandoned);
  Written written{checkpoint::save_checkpoint(runs::checkpoints_of(config_.output), contents,
                                              config_.checkpoint.keep, saving)};
  if (groups_.rank() == 0) directory_.record_saved(contents.state.step);
  written.end = steady_seconds();
  return written;
}

void RunSaver::save() {
  wait();
  const double begin = steady_seconds();
  const ops::NamedTensors router = router_of(trainer_);
  const Written written = write(contents_of(trainer_, config_, router), trainer_.parameters().saved_shards(),
                                *groups_.world, nullptr);
  newest_ = written.path;
  times_ = {written.end - begin, written.end - begin};
}

void RunSaver::start(const StopToken& stop) {
  if (!snapshot_) return save();
  const double due = steady_seconds();
  wait(stop);
  begin_ = steady_seconds();
  if (begin_ - due > kNoticeableSeconds && !std::exchange(has_warned_, true))
    log_.warning(format("training waited %.1f s for the checkpoint before this one; raise checkpoint.every",
                        begin_ - due));
  snapshot_->take(trainer_.parameters().saved_shards());
  ops::NamedTensors router;
  for (const auto& [name, tensor] : router_of(trainer_)) router.emplace_back(name, tensor.clone());
  checkpoint::CheckpointContents contents = contents_of(trainer_, config_, router);
  abandoned_ = false;
  // `router` holds the bytes that `contents` refers to.
  pending_ = std::async(std::launch::async, [this, router, contents = std::move(contents)] {
    yield_to_training();
    return write(contents, snapshot_->get(), *groups_.saving, &abandoned_);
  });
  stall_ = steady_seconds() - due;
}

void RunSaver::poll() {
  if (!pending_.valid() || pending_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
  try {
    finish();
  } catch (const distributed::RankLost&) {
    lost_ = std::current_exception();
  }
}

void RunSaver::wait(const StopToken& stop) {
  if (lost_) std::rethrow_exception(lost_);
  if (!pending_.valid()) return;
  while (pending_.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) {
    if (stop.stop_requested()) abandon();
  }
  finish();
}

void RunSaver::finish() {
  try {
    const Written written = pending_.get();
    newest_ = written.path;
    times_ = {stall_, written.end - begin_};
  } catch (const Abandoned&) {  // the caller saves a newer state
  }
}

}  // namespace dtopp::train
