// The progress of an evaluation, and its batches on several ranks.
#pragma once

#include <cstddef>

#include "dtopp/base/stop.h"
#include "dtopp/distributed/collectives.h"

namespace dtopp::inference {

// Shows the progress of a measurement and can stop it. This class shows nothing.
class Watch {
 public:
  explicit Watch(StopToken stop = {}) : stop_(stop) {}
  virtual ~Watch() = default;
  // Begins work of `total` units, for example 200 "items".
  virtual void begin(const std::string& /*label*/, const char* /*unit*/, uint64_t /*total*/) {}
  virtual void update(uint64_t /*done*/) {}  // units, approximately over all ranks
  virtual void message(const std::string& /*text*/) {}
  // Called before each batch.
  virtual bool stop_requested() { return stop_.stop_requested(); }

 private:
  StopToken stop_;
};

// Distributes the batches of an evaluation over ranks.
//
//   SharedBatches batches(ends, ranks, watch);
//   while (const auto batch = batches.next()) compute(*batch);
//
// The content of a batch does not depend on the number of ranks. The last bits of an item's result depend on
// the other items of its batch, so results are the same for every number of ranks.
class SharedBatches {
 public:
  // ends[b] is the number of units of progress up to the end of batch b.
  SharedBatches(std::vector<uint64_t> ends, distributed::Collectives& ranks, Watch& watch);

  // Returns, in order, each batch b with b % ranks.size() == ranks.rank(). No rank is more than one batch
  // ahead of another.
  //
  // Returns:    the batch; nullopt after the last one, and on all ranks once a stop is requested on any rank
  // Collective: every rank of `ranks` calls it until it returns nullopt
  std::optional<size_t> next();

  bool stopped() const { return stopped_; }

 private:
  void end_round();

  std::vector<uint64_t> ends_;
  distributed::Collectives& ranks_;
  Watch& watch_;
  size_t first_ = 0;  // batch of rank 0 in this round
  bool in_round_ = false, stopped_ = false;
  Tensor stops_;  // f64 [1], ranks that were asked to stop
  distributed::Pending agreement_;
};

}  // namespace dtopp::inference
