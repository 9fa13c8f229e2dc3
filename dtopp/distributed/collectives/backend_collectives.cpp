#include "dtopp/distributed/collectives/backend_collectives.h"

#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/distributed/collectives/transport_error.h"

namespace dtopp::distributed {
namespace {

// Runs an action and adds the rank and the collective to the exception that it throws.
struct ErrorContext {
  std::string who;
  BackendFailure failure;

  template <class Action>
  void attempt(const char* what, Action action) const {
    try {
      action();
    } catch (const std::exception& error) {
      const std::string text = who + ": " + what + " failed: " + reason_of(error);
      if (failure == BackendFailure::kOfDevice) throw ResourceError(text);
      throw RankLost(text);
    }
  }
};

class BackendCollectives final : public Collectives {
 public:
  BackendCollectives(c10::intrusive_ptr<c10d::Backend> backend, ErrorContext context)
      : Collectives(backend->getRank(), backend->getSize()),
        backend_(std::move(backend)),
        context_(std::move(context)) {}
  Pending start(const Collective& collective) override;

 private:
  c10::intrusive_ptr<c10d::Work> issue(Collective collective);

  c10::intrusive_ptr<c10d::Backend> backend_;
  ErrorContext context_;
};

struct BackendOperation final : Pending::Operation {
  BackendOperation(const Collective& collective, ErrorContext context)
      : collective(collective), context(std::move(context)) {}

  void wait() override {
    context.attempt(collective.what, [&] { work->wait(); });
  }
  bool done() override { return work->isCompleted(); }

  Collective collective;  // keeps its tensors alive
  ErrorContext context;
  c10::intrusive_ptr<c10d::Work> work;
};

Pending BackendCollectives::start(const Collective& collective) {
  // All ranks skip an empty collective. An all-to-all with splits may be empty here but not on other ranks.
  const bool alike = collective.splits.in.empty() && collective.kind != Collective::Kind::kBarrier;
  if (alike && collective.out.numel() == 0) return {};
  auto operation = std::make_unique<BackendOperation>(collective, context_);
  context_.attempt(collective.what, [&] { operation->work = issue(collective); });
  return Pending(std::move(operation));
}

// Takes a copy of the collective because torch may change its arguments: Gloo empties the splits.
c10::intrusive_ptr<c10d::Work> BackendCollectives::issue(Collective collective) {
  // Gloo's threads inherit the caller's recording of operators and may outlive it (train/profile.h).
  const at::DisableRecordFunctionGuard unrecorded;
  std::vector<at::Tensor> tensors = {collective.out};
  switch (collective.kind) {
    case Collective::Kind::kAllToAll:
      return backend_->alltoall_base(collective.out, collective.in, collective.splits.out,
                                     collective.splits.in);
    case Collective::Kind::kAllGather: {  // flat, because Gloo compares shapes too
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
                                                      std::string who, BackendFailure failure) {
  return std::make_unique<BackendCollectives>(std::move(backend), ErrorContext{std::move(who), failure});
}

}  // namespace dtopp::distributed
