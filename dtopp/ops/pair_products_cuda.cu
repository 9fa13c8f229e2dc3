// Which operand is what, and by which kernel.
#include "dtopp/ops/pair_multiply_cuda.h"
#include "dtopp/ops/pair_products_cuda.h"

namespace dtopp::cuda {
namespace {

bool has_wgmma(const Device& device) { return device.capability == 90; }

template <bool kOverPairs, bool kRightTransposed, typename Finish>
void multiply(const PairProducts& pairs, const Product& product, const Finish& finish) {
  const Device device = current_device();
  if (has_wgmma(device)) {
    multiply_by_wgmma<kOverPairs, kRightTransposed>(product, finish, device, pairs.stream);
  } else {
    multiply_by_mma<kOverPairs, kRightTransposed>(product, finish, device, pairs.stream);
  }
}

}  // namespace

void activate_pairs(const PairProducts& p, const Activations& in) {
  multiply<false, false>(p,
                         {p.offsets_E1,
                          static_cast<int>(p.experts),
                          {in.x_TD, p.token_A, p.hidden},
                          {in.gate_up_EGD, nullptr, p.hidden},
                          0,
                          p.ffn,
                          p.hidden},
                         Activate{in.pre_AG, in.act_AF});
}

void project_pairs(const PairProducts& p, const Bfloat16* act_AF, const Bfloat16* down_EDF,
                   Bfloat16* out_AD) {
  multiply<false, false>(p,
                         {p.offsets_E1,
                          static_cast<int>(p.experts),
                          {act_AF, nullptr, p.ffn},
                          {down_EDF, nullptr, p.ffn},
                          0,
                          p.hidden,
                          p.ffn},
                         Round{out_AD, 0});
}

void activation_gradients(const PairProducts& p, const ActivationGradients& in) {
  multiply<false, true>(
      p,
      {p.offsets_E1,
       static_cast<int>(p.experts),
       {in.dy_TD, p.token_A, p.hidden},
       {in.down_EDF, nullptr, p.ffn},
       0,
       p.ffn,
       p.hidden},
      ActivateBackward{in.pre_AG, in.gate_A, in.d_pre_AG, in.scaled_AF, in.grad_gate_AP, gate_parts(p.ffn)});
}

int64_t gate_parts(int64_t ffn) {
  return ceil_divide(ffn, has_wgmma(current_device()) ? kWgmmaSlice : kMmaSlice);
}

void input_gradients(const PairProducts& p, const Bfloat16* d_pre_AG, const Bfloat16* gate_up_EGD,
                     Bfloat16* dx_AD) {
  multiply<false, true>(p,
                        {p.offsets_E1,
                         static_cast<int>(p.experts),
                         {d_pre_AG, nullptr, 2 * p.ffn},
                         {gate_up_EGD, nullptr, p.hidden},
                         0,
                         p.hidden,
                         2 * p.ffn},
                        Round{dx_AD, 0});
}

void gate_up_gradient(const PairProducts& p, const Bfloat16* d_pre_AG, const Bfloat16* x_TD,
                      Bfloat16* grad_gate_up_EGD) {
  multiply<true, true>(p,
                       {p.offsets_E1,
                        static_cast<int>(p.experts),
                        {d_pre_AG, nullptr, 2 * p.ffn},
                        {x_TD, p.token_A, p.hidden},
                        2 * p.ffn,
                        p.hidden,
                        0},
                       Round{grad_gate_up_EGD, 2 * p.ffn});
}

void down_gradient(const PairProducts& p, const Bfloat16* dy_TD, const Bfloat16* scaled_AF,
                   Bfloat16* grad_down_EDF) {
  multiply<true, true>(p,
                       {p.offsets_E1,
                        static_cast<int>(p.experts),
                        {dy_TD, p.token_A, p.hidden},
                        {scaled_AF, nullptr, p.ffn},
                        p.hidden,
                        p.ffn,
                        0},
                       Round{grad_down_EDF, p.hidden});
}

}  // namespace dtopp::cuda
