#include "dtopp/distributed/backend_collectives.h"

#include <algorithm>
#include <numeric>

#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "dtopp/base/errors.h"

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
  std::vector<Tensor> tensors = {collective.out};
  switch (collective.kind) {
    case Collective::Kind::kAllToAll:
      return backend_->alltoall_base(collective.out, collective.in, collective.splits.out,
                                     collective.splits.in);
    case Collective::Kind::kAllGather: {  // flat, because Gloo compares shapes too
      Tensor out = collective.out.view(-1), in = collective.in.view(-1);
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

using c10d::ProcessGroupGloo;

std::shared_ptr<gloo::transport::Device> make_device(const std::string& host) {
  try {
    return host.empty() ? ProcessGroupGloo::createDefaultDevice()
                        : ProcessGroupGloo::createDeviceForHostname(host);
  } catch (const std::exception& error) {
    throw UsageError("no address for host '", host, "': ", reason_of(error));
  }
}

}  // namespace

std::unique_ptr<Collectives> make_backend_collectives(c10::intrusive_ptr<c10d::Backend> backend,
                                                      std::string who, BackendFailure failure) {
  return std::make_unique<BackendCollectives>(std::move(backend), ErrorContext{std::move(who), failure});
}

std::vector<int64_t> all_ranks(int64_t size) { return edp_ranks(0, 1, size); }

std::vector<int64_t> ep_ranks(int64_t rank, int64_t ep_size) {
  std::vector<int64_t> ranks(static_cast<size_t>(ep_size));
  std::iota(ranks.begin(), ranks.end(), rank / ep_size * ep_size);
  return ranks;
}

std::vector<int64_t> edp_ranks(int64_t rank, int64_t ep_size, int64_t size) {
  TORCH_CHECK(size % ep_size == 0, size, " ranks do not divide into groups of ", ep_size);
  std::vector<int64_t> ranks;
  for (int64_t other = rank % ep_size; other < size; other += ep_size) ranks.push_back(other);
  return ranks;
}

std::unique_ptr<Collectives> make_gloo_collectives(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const std::string& name, int64_t rank,
                                                   const std::vector<int64_t>& ranks,
                                                   const GlooOptions& options) {
  const auto position = std::find(ranks.begin(), ranks.end(), rank);
  TORCH_CHECK(position != ranks.end(), "rank ", rank, " is not in group ", name, ", ", ranks);
  if (ranks.size() == 1) return std::make_unique<SingleRank>();
  auto gloo = ProcessGroupGloo::Options::create(options.timeout);
  gloo->devices.push_back(make_device(options.host));
  try {
    auto keys = c10::make_intrusive<c10d::PrefixStore>(c10::str(name, '/', ranks[0]), store);
    auto collectives = make_backend_collectives(
        c10::make_intrusive<ProcessGroupGloo>(keys, static_cast<int>(position - ranks.begin()),
                                              static_cast<int>(ranks.size()), gloo),
        c10::str("rank ", rank, ", group ", name));
    // Without this barrier a rank could leave while another still connects, which would then wait for the
    // whole timeout.
    collectives->barrier("connect").wait();
    return collectives;
  } catch (const std::exception& error) {
    throw ResourceError("rank ", rank, " could not connect to the other ", ranks.size() - 1, " ranks of ",
                        name, " within ", options.timeout.count(), " ms: ", reason_of(error));
  }
}

}  // namespace dtopp::distributed
