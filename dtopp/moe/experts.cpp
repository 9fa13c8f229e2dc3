#include "dtopp/moe/experts.h"

#include <torch/csrc/autograd/custom_function.h>

#include "dtopp/distributed/tree_sum.h"

namespace dtopp::moe {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The dispatch plan: the rows that a layer sends to each rank, for both directions.
struct DispatchPlan final : torch::CustomClassHolder {
  distributed::Collectives* ranks = nullptr;
  bool reproducible = false;
  int64_t tokens = 0;                   // tokens of this rank
  std::vector<Tensor> token_S;          // per rank: the tokens that are sent to it, ascending
  std::vector<int64_t> sent, received;  // rows per destination rank, rows per source rank
  std::vector<int64_t> received_pairs;  // token-expert pairs in the rows of each source rank

  // Sends rows of this rank's tokens to the ranks of their experts.
  Tensor dispatch(const std::vector<Tensor>& rows_to_rank, const char* what) const {
    return exchange(at::cat(rows_to_rank), {received, sent}, what);
  }
  // Returns one row per received row to the rank that sent it.
  std::vector<Tensor> combine(const Tensor& rows, const char* what) const {
    return exchange(rows.contiguous(), {sent, received}, what).split_with_sizes(sent);
  }
  std::vector<Tensor> select(const Tensor& x_TD) const {
    std::vector<Tensor> rows;
    for (const Tensor& tokens : token_S) rows.push_back(x_TD.index_select(0, tokens));
    return rows;
  }
  // Adds the returned rows of each token. A token that was sent nowhere gets 0. `reproducible` sums along the
  // tree over ranks, which needs [tokens, D] per rank; other sums read and write the returned rows alone.
  Tensor sum(const std::vector<Tensor>& rows_from_rank) const {
    const auto options = rows_from_rank[0].options();
    if (!reproducible) {
      const Tensor sum_TD = at::zeros({tokens, rows_from_rank[0].size(1)}, options);
      for (size_t rank = 0; rank < token_S.size(); ++rank)
        sum_TD.index_add_(0, token_S[rank], rows_from_rank[rank]);
      return sum_TD;
    }
    distributed::TreeAccumulator sum;
    Tensor went = at::zeros({tokens, 1}, options.dtype(at::kBool));
    for (size_t rank = 0; rank < token_S.size(); ++rank) {
      Tensor leaf = at::full({tokens, rows_from_rank[rank].size(1)}, distributed::kNothing, options);
      sum.add(leaf.index_copy_(0, token_S[rank], rows_from_rank[rank]));
      went.index_fill_(0, token_S[rank], true);
    }
    return sum.finish().masked_fill_(went.logical_not_(), 0);
  }

 private:
  Tensor exchange(const Tensor& in, const distributed::Splits& rows, const char* what) const {
    Tensor out = at::empty({c10::sum_integers(rows.out), in.size(1)}, in.options());
    ranks->all_to_all(out, in, rows, what).wait();
    return out;
  }
};
using DispatchPlanPointer = c10::intrusive_ptr<DispatchPlan>;

constexpr const char* kPlan = "plan";

void save_plan(AutogradContext* context, const DispatchPlanPointer& plan) {
  context->saved_data[kPlan] = c10::IValue::make_capsule(plan);
}

DispatchPlanPointer saved_plan(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<DispatchPlan>(context->saved_data[kPlan].toCapsule());
}

std::vector<int64_t> column(const Tensor& numbers, int64_t index) {
  const Tensor of_all = numbers.select(1, index).contiguous();
  return {of_all.const_data_ptr<int64_t>(), of_all.const_data_ptr<int64_t>() + of_all.numel()};
}

DispatchPlanPointer make_dispatch_plan(distributed::Collectives& ranks, const Tensor& gates_TE,
                                       bool reproducible) {
  auto plan = c10::make_intrusive<DispatchPlan>();
  plan->ranks = &ranks;
  plan->reproducible = reproducible;
  plan->tokens = gates_TE.size(0);
  // The host needs these counts. On a device it waits twice: for this copy and for nonzero() below.
  const int64_t experts = gates_TE.size(1) / ranks.size();
  const Tensor pairs_KT = gates_TE.detach().ne(0).view({-1, ranks.size(), experts}).sum(2).t();
  const Tensor goes_KT = pairs_KT.ne(0);
  const Tensor sent_K2 = at::stack({goes_KT.sum(1), pairs_KT.sum(1)}, 1).cpu();
  const Tensor received_K2 = at::empty_like(sent_K2);
  ranks.all_to_all(received_K2, sent_K2, {}, "dispatch").wait();
  plan->sent = column(sent_K2, 0);
  plan->received = column(received_K2, 0);
  plan->received_pairs = column(received_K2, 1);
  plan->token_S = goes_KT.nonzero().select(1, 1).split_with_sizes(plan->sent);
  return plan;
}

// Sends rows and gates to the ranks of their experts.
struct Dispatch : torch::autograd::Function<Dispatch> {
  static variable_list forward(AutogradContext* context, const Tensor& x_TD, const Tensor& gates_TE,
                               const DispatchPlanPointer& plan) {
    save_plan(context, plan);
    std::vector<Tensor> gates = gates_TE.split(gates_TE.size(1) / plan->ranks->size(), 1);
    for (size_t rank = 0; rank < gates.size(); ++rank)
      gates[rank] = gates[rank].index_select(0, plan->token_S[rank]);
    return {plan->dispatch(plan->select(x_TD), "dispatch"), plan->dispatch(gates, "dispatch")};
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const DispatchPlanPointer plan = saved_plan(context);
    const Tensor grad_x_TD = plan->sum(plan->combine(grads[0], "dispatch"));
    std::vector<Tensor> grad_gates;
    const std::vector<Tensor> rows = plan->combine(grads[1], "dispatch");
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      const Tensor slice = at::zeros({plan->tokens, rows[rank].size(1)}, rows[rank].options());
      grad_gates.push_back(slice.index_copy(0, plan->token_S[rank], rows[rank]));
    }
    return {grad_x_TD, at::cat(grad_gates, 1), {}};
  }
};

// Returns the experts' rows to the tokens' ranks, which add them.
struct Combine : torch::autograd::Function<Combine> {
  static Tensor forward(AutogradContext* context, const Tensor& y_AD, const DispatchPlanPointer& plan) {
    save_plan(context, plan);
    return plan->sum(plan->combine(y_AD, "combine"));
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const DispatchPlanPointer plan = saved_plan(context);
    return {plan->dispatch(plan->select(grads[0]), "combine"), {}};
  }
};

// Copies a tensor several times. The backward pass adds the gradients of the copies along the tree.
struct FanOut : torch::autograd::Function<FanOut> {
  static variable_list forward(AutogradContext* context, const Tensor& weight, int64_t times) {
    context->set_materialize_grads(false);  // a source rank without rows has no gradient
    variable_list copies;
    for (int64_t i = 0; i < times; ++i) copies.push_back(weight.detach());
    return copies;
  }
  static variable_list backward(AutogradContext*, const variable_list& grads) {
    return {distributed::tree_sum(grads), {}};
  }
};

// Computes moe_ffn separately for the rows of each source rank.
Tensor compute_by_rank(const DispatchPlan& plan, const Tensor& x_AD, const Tensor& gates_AE,
                       const Tensor& gate_up_proj, const Tensor& down_proj, bool recompute) {
  const auto times = std::ssize(plan.received);
  const variable_list gate_up = FanOut::apply(gate_up_proj, times), down = FanOut::apply(down_proj, times);
  const std::vector<Tensor> x = x_AD.split_with_sizes(plan.received);
  const std::vector<Tensor> gates = gates_AE.split_with_sizes(plan.received);
  std::vector<Tensor> rows;
  for (size_t rank = 0; rank < x.size(); ++rank) {
    const bool any = plan.received[rank] > 0;
    rows.push_back(any ? ops::moe_ffn(x[rank], gates[rank], gate_up[rank], down[rank],
                                      plan.received_pairs[rank], recompute)
                       : x[rank]);
  }
  return at::cat(rows);
}

}  // namespace

Tensor AllToAllTokenDispatcher::forward(int64_t /*layer*/, const Tensor& x_TD, const Tensor& gates_TE,
                                        const Tensor& gate_up_proj, const Tensor& down_proj, bool recompute) {
  TORCH_CHECK(gates_TE.size(1) == gate_up_proj.size(0) * ranks_.size(),
              "token dispatcher: ", gates_TE.size(1), " gates per token do not match ", gate_up_proj.size(0),
              " experts on each of ", ranks_.size(), " ranks");
  const DispatchPlanPointer plan = make_dispatch_plan(ranks_, gates_TE, reproducible_);
  const variable_list there = Dispatch::apply(x_TD, gates_TE, plan);
  const Tensor y_AD = reproducible_
                          ? compute_by_rank(*plan, there[0], there[1], gate_up_proj, down_proj, recompute)
                          : ops::moe_ffn(there[0], there[1], gate_up_proj, down_proj,
                                         c10::sum_integers(plan->received_pairs), recompute);
  return Combine::apply(y_AD, plan);
}

}  // namespace dtopp::moe
