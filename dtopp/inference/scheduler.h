// Runs the requests of `dtopp serve` in one batch: a queue, admission under a limit of cache memory, one step
// for all running sequences.
#pragma once

#include <chrono>
#include <condition_variable>

#include "dtopp/inference/generator.h"

namespace dtopp::inference {

// The origin of a request. Called on the scheduler's thread.
class TokenReceiver {
 public:
  virtual ~TokenReceiver() = default;
  // Takes a token of the request's sequence `sequence`. Returns false if it needs no more of them.
  virtual bool receive(size_t sequence, const GeneratedToken& token) = 0;
  // Returns false if the request is not needed any more, for example after its client left. Any thread may
  // call it.
  virtual bool is_needed() const = 0;
};

struct SchedulerLimits {
  size_t running = 64;       // sequences in a step
  size_t waiting = 256;      // sequences in the queue
  int64_t cache_tokens = 0;  // tokens of all running sequences, with those they may still generate
};

class Scheduler {
 public:
  // `model` must outlive the object.
  Scheduler(const InferenceModel& model, const SchedulerLimits& limits);

  // The cache memory that a sequence reserves, in tokens.
  static int64_t reservation(const SequenceInput& sequence);

  enum class Admission { kQueued, kFull, kClosed };
  // Queues the sequences of a request, all or none. Any thread may call it.
  //
  // Preconditions: no sequence reserves more than SchedulerLimits::cache_tokens
  Admission submit(std::vector<SequenceInput> sequences, const std::shared_ptr<TokenReceiver>& receiver);

  // Adds the router of a budget (SequenceInput::budget). Any thread may call it.
  void add_budget(int64_t budget, std::shared_ptr<moe::Router> router);
  std::vector<int64_t> budgets() const;  // the added ones
  // Waits up to `time` until a sequence waits for a budget that is missing, and returns the first such
  // budget. Any thread may call it.
  std::optional<int64_t> missing_budget(std::chrono::milliseconds time);

  // Starts waiting sequences in order of arrival, as far as the limits allow, and generates one token for
  // each running one. A sequence whose budget is missing lets later ones pass. Waits up to `time` if there is
  // none to start or run.
  void step(std::chrono::milliseconds time);
  // Closes the queue if no sequence runs or waits. Returns true if it is closed.
  bool close_if_idle();

  struct Load {
    size_t running = 0, waiting = 0;
    int64_t cache_tokens = 0;
  };
  Load load() const;
  const SchedulerLimits& limits() const { return limits_; }

 private:
  struct Job {
    SequenceInput input;
    std::shared_ptr<TokenReceiver> receiver;
    size_t sequence = 0;  // of the request
    int64_t left = 0;     // tokens
    int64_t reserved = 0;
  };
  using Running = std::map<size_t, Job>;
  bool can_start(const Job& job) const;
  void admit();
  Running::iterator end(Running::iterator job);

  SchedulerLimits limits_;
  Generation generation_;
  Running running_;           // by the generation's sequence
  mutable std::mutex mutex_;  // of the members below
  std::condition_variable arrived_;
  std::deque<Job> waiting_;
  std::map<int64_t, std::shared_ptr<moe::Router>> budgets_;
  Load load_;
  bool is_closed_ = false;
};

}  // namespace dtopp::inference
