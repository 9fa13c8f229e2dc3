// Tests the rules of moe/router.h for every routing method, and each selection against its equations. A new
// method adds a row to kMethods.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/moe/make_router.h"

namespace dtopp::moe::router_family_test {
namespace {

// A selection and its gates, in double.
struct Expected {
  at::Tensor map_TE, gates_TE;
};

// The indices of each row's numbers, the largest first and of equal ones the lower index first.
at::Tensor order_of(const at::Tensor& score_TE) {
  return std::get<1>(score_TE.detach().sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true));
}

// The first count_T[t] experts of a token's order.
at::Tensor first_of(const at::Tensor& order_TE, const at::Tensor& count_T) {
  const at::Tensor place_TE = at::arange(order_TE.size(1)).expand_as(order_TE);
  return at::empty_like(order_TE).scatter(1, order_TE, place_TE).lt(count_T.unsqueeze(1));
}

at::Tensor same_for_all(const at::Tensor& z_TE, int64_t count) {
  return at::full({z_TE.size(0)}, count, at::kLong);
}

Expected renormalized(const at::Tensor& score_TE, const at::Tensor& map_TE) {
  const at::Tensor kept_TE = score_TE * map_TE;
  return {map_TE, kept_TE / kept_TE.sum(1, /*keepdim=*/true)};
}

// z_TE: double. s and P are those of ops/route/route.h.
struct Case {
  const config::RoutingConfig& config;
  const ops::NamedTensors& state;
  int64_t layer;
  at::Tensor z_TE, s_TE, prob_TE;

  at::Tensor number(const char* name) const { return ops::find_tensor(state, name, "state"); }
  at::Tensor bias_E() const { return number("bias_LE")[layer]; }
};

Expected by_mass(const Case& c, const at::Tensor& threshold, const at::Tensor& order_TE) {
  const at::Tensor sorted_TE = std::get<0>(c.prob_TE.detach().sort(/*dim=*/-1, /*descending=*/true));
  const at::Tensor count_T = (sorted_TE.cumsum(-1) - sorted_TE).lt(threshold).sum(-1);
  return renormalized(c.prob_TE, first_of(order_TE, count_T));
}

struct Method {
  const char* name;
  config::RoutingMethod method;
  config::Normalization normalization;
  config::Renormalize renormalize;
  Expected (*select)(const Case& c);
  int zero_experts = 0;  // the last columns of the logits
  config::ExpertNormalization expert_normalization = config::ExpertNormalization::kNone;
};

using enum config::RoutingMethod;
using enum config::Normalization;
using enum config::Renormalize;

const Method kMethods[] = {
    {"top_k", kTopK, kFixed, kSum,
     [](const Case& c) {
       const int64_t k = config::top_k_of(c.config);
       return renormalized(c.prob_TE, first_of(order_of(c.prob_TE), same_for_all(c.z_TE, k)));
     }},
    {"top_k_bias", kTopKBias, kNone, kSum,
     [](const Case& c) {
       const at::Tensor score_TE = c.z_TE.sigmoid(), order_TE = order_of(score_TE + c.bias_E());
       const int64_t k = config::top_k_of(c.config);
       return renormalized(score_TE, first_of(order_TE, same_for_all(c.z_TE, k)));
     }},
    {"top_p", kTopP, kFixed, kSum,
     [](const Case& c) {
       return by_mass(c, at::scalar_tensor(c.config.threshold, at::kDouble), order_of(c.prob_TE));
     }},
    {"dtop_p", kDTopP, kDynamic, kSum,
     [](const Case& c) { return by_mass(c, c.number("threshold_C"), order_of(c.prob_TE)); }},
    {"dtop_p_l2", kDTopP, kDynamic, kL2,
     [](const Case& c) {
       const Expected with_sum = by_mass(c, c.number("threshold_C"), order_of(c.prob_TE));
       return Expected{with_sum.map_TE, with_sum.gates_TE / with_sum.gates_TE.norm(2, {1}, true)};
     }},
    {"dtop_p_bias", kDTopPBias, kDynamic, kSum,
     [](const Case& c) { return by_mass(c, c.number("threshold_C"), order_of(c.s_TE + c.bias_E())); }},
    {"relu", kRelu, kNone, kNo,
     [](const Case& c) {
       return Expected{c.z_TE.detach() > 0, c.z_TE.relu()};
     }},
    {"expert_threshold", kExpertThreshold, kNone, kNo,
     [](const Case& c) {
       const double steps = c.number("cut_steps").item<double>();
       const at::Tensor tau_E = c.number("cut_LE")[c.layer] / (1 - std::pow(c.config.cut_decay, steps));
       const at::Tensor map_TE = steps == 0 ? first_of(order_of(c.z_TE), same_for_all(c.z_TE, 3))
                                            : c.z_TE.detach().to(at::kFloat) >= tau_E.to(at::kFloat);
       return Expected{map_TE, c.z_TE.sigmoid() * map_TE};
     }},
    {"top_k_bias_zero", kTopKBias, kNone, kSum,
     [](const Case& c) {
       const at::Tensor bias_E = at::constant_pad_nd(c.bias_E(), {0, c.prob_TE.size(1) - c.bias_E().size(0)});
       const at::Tensor order_TE = order_of(c.prob_TE + bias_E);
       return renormalized(c.prob_TE, first_of(order_TE, same_for_all(c.z_TE, c.config.max_experts)));
     },
     3},
    {"dtop_p_zero", kDTopP, kDynamic, kSum,
     [](const Case& c) { return by_mass(c, c.number("threshold_C"), order_of(c.prob_TE)); }, 3},
    {"dtop_p_expert_normalization", kDTopP, kDynamic, kSum,
     [](const Case& c) { return by_mass(c, c.number("threshold_C"), order_of(c.prob_TE)); }, 0,
     config::ExpertNormalization::kRunning},
};

constexpr int64_t kLayers = 2, kSequence = 8;

// `columns`: experts and zero experts.
config::RunConfig config_of(const Method& method, int64_t columns = 8) {
  const int64_t experts = columns - method.zero_experts;
  config::RunConfig config;
  config.model.num_layers = kLayers;
  config.model.num_experts = experts;
  config.model.zero_experts = method.zero_experts;
  if (method.zero_experts > 0 && method.method == kTopKBias) config.routing.max_experts = 5;
  config.model.sequence_length = kSequence;
  config.model.hidden_size = 1;
  config.routing.method = method.method;
  config.routing.expert_normalization = method.expert_normalization;
  config.routing.experts = {static_cast<double>(std::min<int64_t>(experts, 3))};
  config.routing.threshold = 0.4;
  config.routing.normalization = method.normalization;
  config.routing.renormalize = method.renormalize;
  config.routing.bias_rate = 0.05;
  config.loss.load_balance = method.method == kRelu ? 0 : 1e-4;
  return config;
}

at::Tensor yes() { return at::full({}, true, at::kBool); }

class RouterFamily : public testing::TestWithParam<Method> {
 protected:
  RouterFamily() { at::manual_seed(1); }

  std::unique_ptr<Router> make(int64_t experts = 8) const {
    return make_router(config_of(GetParam(), experts), at::kCPU);
  }
  // A router after steps that have moved its state.
  std::unique_ptr<Router> trained(int64_t experts = 8) const {
    auto router = make(experts);
    const at::Tensor offset_E = at::randn({experts});
    for (int n = 0; n < 4; ++n)
      step(*router, {at::randn({64, experts}) + offset_E, at::randn({64, experts}) - offset_E});
    return router;
  }
  static ops::RouteOutput select(Router& router, const at::Tensor& z_TE, int64_t layer = 1,
                                 bool training = false) {
    return router.select({layer, z_TE, at::full({}, 1.3), training});
  }
  // An optimizer step whose tokens have these logits, in equal micro-batches.
  static void step(Router& router, const std::vector<at::Tensor>& z_LTE, int64_t micro_batches = 1,
                   const at::Tensor& applied = yes()) {
    std::vector<at::Tensor> counts, statistics, logit_sums;
    for (size_t layer = 0; layer < z_LTE.size(); ++layer) {
      at::Tensor counts_E, statistics_S, logit_sums_S = at::zeros({router.logit_sums_shape()[1]}, at::kLong);
      for (const at::Tensor& z_TE : z_LTE[layer].chunk(micro_batches)) {
        const ops::RouteOutput out = select(router, z_TE, static_cast<int64_t>(layer), /*training=*/true);
        counts_E = counts_E.defined() ? counts_E + out.tokens_per_expert_E : out.tokens_per_expert_E;
        if (out.statistics.defined())
          statistics_S = statistics_S.defined() ? statistics_S + out.statistics : out.statistics;
        logit_sums_S += router.logit_sums(z_TE, /*x_TD=*/z_TE.narrow(1, 0, 1));
      }
      counts.push_back(counts_E.narrow(0, 0, router.num_experts()));
      if (statistics_S.defined()) statistics.push_back(statistics_S);
      logit_sums.push_back(logit_sums_S);
    }
    at::Tensor rows = statistics.empty() ? at::Tensor() : at::stack(statistics);
    if (rows.defined() && router.statistics_shape()[0] == 1) rows = rows.sum(0, /*keepdim=*/true);
    router.update({at::stack(counts), z_LTE[0].size(0), rows, at::stack(logit_sums)}, applied);
  }
  Expected expected(const Router& router, const at::Tensor& z_TE) const {
    const config::RoutingConfig& config = router.config();
    const ops::NamedTensors state = router.state();
    const at::Tensor s_TE =
        softmax_inputs({1, z_TE, at::full({}, 1.3F).to(at::kDouble)}, config.normalization);
    return GetParam().select({config, state, 1, z_TE, s_TE, s_TE.softmax(-1)});
  }
};

MATCHER_P(has_the_state_of, router, "has the same state") {
  const ops::NamedTensors a = arg->state(), b = router->state();
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.scalar_type() == y.second.scalar_type() && x.second.equal(y.second);
  });
}

TEST_P(RouterFamily, selects_and_weighs_as_its_equations) {
  for (const int64_t experts : {1, 2, 8, 33, 64, 512}) {
    if (experts < GetParam().zero_experts + 2) continue;
    for (const bool first_step : {true, false}) {
      const auto router = first_step ? make(experts) : trained(experts);
      for (const int64_t tokens : {0, 1, 7, 513}) {
        SCOPED_TRACE(testing::Message() << tokens << " tokens, " << experts << " experts, " << first_step);
        if (first_step && experts < 3) continue;  // fewer experts than the first step takes
        const at::Tensor z_TE = at::randn({tokens, experts}).requires_grad_();
        const at::Tensor exact_TE = z_TE.detach().to(at::kDouble).requires_grad_();
        const ops::RouteOutput out = select(*router, z_TE);
        const Expected want = expected(*router, exact_TE);
        EXPECT_TRUE(out.gates_TE.ne(0).equal(want.map_TE));
        EXPECT_TRUE(out.gates_TE.to(at::kDouble).allclose(want.gates_TE, 1e-5, 1e-6));
        const at::Tensor grad_TE = at::randn({tokens, experts});
        out.gates_TE.backward(grad_TE);
        want.gates_TE.backward(grad_TE.to(at::kDouble));
        // Normalization divides by the deviation, which can be small for two logits.
        EXPECT_TRUE(z_TE.grad().to(at::kDouble).allclose(exact_TE.grad(), 1e-4, experts == 2 ? 1e-2 : 1e-5));
      }
    }
  }
}

TEST_P(RouterFamily, its_z_loss_is_of_the_raw_logits) {
  const auto router = trained();
  for (const int64_t tokens : {0, 1, 200}) {
    const at::Tensor z_TE = at::randn({tokens, 8}).requires_grad_();
    const at::Tensor exact_TE = z_TE.detach().to(at::kDouble).requires_grad_();
    const at::Tensor loss = select(*router, z_TE).router_z;
    const at::Tensor expected = at::logsumexp(exact_TE, {-1}).square().sum() / std::max<int64_t>(tokens, 1);
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5 * expected.item<double>());
    loss.backward();
    expected.backward();
    EXPECT_TRUE(z_TE.grad().to(at::kDouble).allclose(exact_TE.grad(), 1e-4, 1e-7));
  }
}

TEST_P(RouterFamily, a_token_does_not_depend_on_its_batch) {
  for (const int64_t experts : {8, 33, 64}) {
    const auto router = trained(experts);
    const at::Tensor z_TE = at::randn({300, experts}), order_T = at::randperm(300);
    const at::Tensor gates_TE = select(*router, z_TE).gates_TE;
    EXPECT_TRUE(
        select(*router, z_TE.index_select(0, order_T)).gates_TE.equal(gates_TE.index_select(0, order_T)));
    for (const int64_t t : {0, 150, 299})
      EXPECT_TRUE(select(*router, z_TE.narrow(0, t, 1)).gates_TE[0].equal(gates_TE[t]));
  }
}

TEST_P(RouterFamily, counts_are_those_of_the_selection) {
  const auto router = trained();
  const ops::RouteOutput out = select(*router, at::randn({200, 8}));
  const at::Tensor map_TE = out.gates_TE.ne(0);
  EXPECT_TRUE(out.tokens_per_expert_E.equal(map_TE.sum(0)));
  EXPECT_TRUE(out.active_histogram.equal(at::bincount(map_TE.sum(1), {}, 9)));
  EXPECT_EQ(out.tokens_per_expert_E.scalar_type(), at::kLong);
}

TEST_P(RouterFamily, only_an_applied_step_moves_the_state) {
  const auto router = trained(), twin = make();
  twin->load_state(router->state());
  const at::Tensor z_TE = at::randn({64, 8});
  select(*router, z_TE);
  step(*router, {z_TE, z_TE}, 1, at::logical_not(yes()));
  EXPECT_THAT(router, has_the_state_of(twin.get()));
  EXPECT_TRUE(select(*router, z_TE).gates_TE.equal(select(*twin, z_TE).gates_TE));
}

TEST_P(RouterFamily, goes_on_from_a_saved_state_with_the_same_bits) {
  const auto router = trained(), resumed = make();
  resumed->load_state(router->state());
  for (int n = 0; n < 3; ++n) {
    const at::Tensor z_TE = at::randn({64, 8});
    EXPECT_TRUE(select(*resumed, z_TE).gates_TE.equal(select(*router, z_TE).gates_TE));
    for (Router* one : {router.get(), resumed.get()}) step(*one, {z_TE, -z_TE});
    EXPECT_THAT(resumed, has_the_state_of(router.get()));
  }
}

TEST_P(RouterFamily, state_does_not_depend_on_the_division_into_micro_batches) {
  const auto whole = make(), parts = make();
  for (int n = 0; n < 3; ++n) {
    const at::Tensor z_TE = at::randn({64, 8});
    step(*whole, {z_TE, z_TE * 2});
    step(*parts, {z_TE, z_TE * 2}, /*micro_batches=*/4);
    EXPECT_THAT(parts, has_the_state_of(whole.get()));
  }
}

TEST_P(RouterFamily, takes_the_lower_index_of_equal_experts) {
  const auto router = make();
  const at::Tensor map_TE = select(*router, at::full({4, 8}, 0.5)).gates_TE.ne(0).to(at::kInt);
  EXPECT_TRUE(map_TE.narrow(1, 0, 7).ge(map_TE.narrow(1, 1, 7)).all().item<bool>()) << map_TE;
  EXPECT_TRUE(map_TE.select(1, 0).all().item<bool>());
}

TEST_P(RouterFamily, a_logit_that_is_not_finite_shows_in_its_own_token_alone) {
  const auto router = trained();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    at::Tensor z_TE = at::randn({20, 8});
    const at::Tensor before_TE = select(*router, z_TE).gates_TE;
    z_TE = z_TE.clone();
    z_TE[7][5] = bad;
    const ops::RouteOutput out = select(*router, z_TE, 1, /*training=*/true);
    // sigmoid(inf) is 1.
    const bool is_sigmoid = (GetParam().method == kTopKBias && GetParam().zero_experts == 0) ||
                            GetParam().method == kExpertThreshold;
    EXPECT_EQ(out.gates_TE[7].isfinite().all().item<bool>(), is_sigmoid && !std::isnan(bad));
    for (const int64_t t : {0, 6, 8, 19}) EXPECT_TRUE(out.gates_TE[t].equal(before_TE[t]));
    EXPECT_TRUE(out.tokens_per_expert_E.equal(out.gates_TE.ne(0).sum(0)));
  }
}

TEST_P(RouterFamily, refuses_a_state_that_does_not_fit) {
  const auto router = make();
  EXPECT_THROW(router->load_state({{"unknown", at::zeros({1}, at::kDouble)}}), std::invalid_argument);
  const ops::NamedTensors state = router->state();
  if (state.empty()) return;
  EXPECT_THROW(router->load_state({}), std::invalid_argument);
  ops::NamedTensors wrong = state;
  wrong[0].second = at::zeros({3, 5}, wrong[0].second.scalar_type());
  EXPECT_THROW(router->load_state(wrong), std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(Methods, RouterFamily, testing::ValuesIn(kMethods),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace dtopp::moe::router_family_test
