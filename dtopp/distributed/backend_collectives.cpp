#include "dtopp/distributed/backend_collectives.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/distributed/transport_error.h"

namespace dtopp {
namespace {

class BackendCollectives final : public Collectives {
 public:
  BackendCollectives(c10::intrusive_ptr<c10d::Backend> backend, std::string who)
      : Collectives(backend->getRank(), backend->getSize()),
        backend_(std::move(backend)),
        who_(std::move(who)) {}
  Pending start(const Collective& collective) override;

 private:
  c10::intrusive_ptr<c10d::Work> issue(Collective collective);

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::string who_;
};

// Calls `action`, and names the rank and the collective in what it throws.
template <class Action>
void attempt(const std::string& who, const char* what, Action action) {
  try {
    action();
  } catch (const std::exception& error) {
    throw RankLost(who + ": " + what + " failed: " + reason_of(error));
  }
}

struct BackendOperation final : Pending::Operation {
  BackendOperation(const Collective& collective, const std::string& who) : collective(collective), who(who) {}

  void wait() override {
    attempt(who, collective.what, [&] { work->wait(); });
  }
  bool done() override { return work->isCompleted(); }

  Collective collective;  // keeps its tensors
  std::string who;
  c10::intrusive_ptr<c10d::Work> work;
};

Pending BackendCollectives::start(const Collective& collective) {
  // All ranks leave it out alike. An all-to-all of nothing here may have something for others.
  const bool alike = collective.splits.in.empty() && collective.kind != Collective::Kind::kBarrier;
  if (alike && collective.out.numel() == 0) return {};
  auto operation = std::make_unique<BackendOperation>(collective, who_);
  attempt(who_, collective.what, [&] { operation->work = issue(collective); });
  return Pending(std::move(operation));
}

// A collective of its own: what torch is given to work on it may change, such as the splits that Gloo
// empties.
c10::intrusive_ptr<c10d::Work> BackendCollectives::issue(Collective collective) {
  std::vector<at::Tensor> tensors = {collective.out};
  switch (collective.kind) {
    case Collective::Kind::kAllToAll:
      return backend_->alltoall_base(collective.out, collective.in, collective.splits.out,
                                     collective.splits.in);
    case Collective::Kind::kAllGather: {  // flat: Gloo compares shapes, too
      at::Tensor out = collective.out.view(-1), in = collective.in.view(-1);
      return backend_->_allgather_base(out, in);
    }
    case Collective::Kind::kAllReduceSum:
      return backend_->allreduce(tensors);
    case Collective::Kind::kBroadcast: {
      c10d::BroadcastOptions options;
      options.rootRank = collective.root;
      return backend_->broadcast(tensors, options);
    }
    case Collective::Kind::kBarrier:
      return backend_->barrier();
  }
  return {};
}

}  // namespace

std::unique_ptr<Collectives> make_backend_collectives(c10::intrusive_ptr<c10d::Backend> backend,
                                                      std::string who) {
  return std::make_unique<BackendCollectives>(std::move(backend), std::move(who));
}

}  // namespace dtopp
