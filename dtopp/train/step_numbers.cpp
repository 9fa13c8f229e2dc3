#include "dtopp/train/step_numbers.h"

#include <algorithm>
#include <stdexcept>

namespace dtopp::train {
namespace {

int64_t elements(const std::vector<int64_t>& shape) { return c10::multiply_integers(shape); }

// This rank's values of a field. Only kMaxOverRanks has a row per rank, zero in those of other ranks.
at::Tensor contribution(const StepField& field, const ops::NamedTensors& local,
                        const at::TensorOptions& options, const distributed::Collectives& ranks) {
  const int64_t size = elements(field.shape);
  const auto found =
      std::ranges::find_if(local, [&](const auto& tensor) { return tensor.first == field.name; });
  const bool given = found != local.end() && found->second.defined();
  if (given && found->second.numel() != size)
    throw std::invalid_argument("StepNumbers: " + field.name + " has " +
                                std::to_string(found->second.numel()) + " numbers instead of " +
                                std::to_string(size));
  const at::Tensor values = given ? found->second.to(at::kDouble).reshape({-1}) : at::zeros({size}, options);
  if (field.reduce != Reduce::kMaxOverRanks) return values;
  return at::cat({at::zeros({ranks.rank() * size}, options), values,
                  at::zeros({(ranks.size() - 1 - ranks.rank()) * size}, options)});
}

// The result of a field, from the sum of all ranks' contributions.
at::Tensor result(const StepField& field, const at::Tensor& sum, int64_t ranks) {
  if (field.reduce == Reduce::kMaxOverRanks) return sum.view({ranks, elements(field.shape)}).amax(0);
  const at::Tensor shaped = sum.view(field.shape);
  return field.reduce == Reduce::kSumRows ? shaped.sum(0) : shaped;
}

}  // namespace

StepNumbers StepNumbers::reduce(const StepSchema& schema, const ops::NamedTensors& local,
                                const at::TensorOptions& options, distributed::Collectives& ranks) {
  const auto in_f64 = options.dtype(at::kDouble);
  std::vector<at::Tensor> lists;
  for (const StepField& field : schema) lists.push_back(contribution(field, local, in_f64, ranks));
  const at::Tensor all = at::cat(lists);
  ranks.all_reduce_sum(all, "step").wait();
  StepNumbers numbers;
  int64_t begin = 0;
  for (size_t i = 0; i < schema.size(); ++i) {
    const int64_t size = lists[i].numel();
    numbers.add(schema[i].name, result(schema[i], all.narrow(0, begin, size), ranks.size()));
    begin += size;
  }
  return numbers;
}

void StepNumbers::add(std::string name, const at::Tensor& value) {
  if (has(name)) throw std::invalid_argument("StepNumbers: two numbers named " + name);
  values_.emplace_back(std::move(name), value.to(at::kDouble));
}

bool StepNumbers::has(std::string_view name) const {
  return std::ranges::any_of(values_, [&](const auto& value) { return value.first == name; });
}

at::Tensor StepNumbers::take(std::string_view name) {
  at::Tensor value = (*this)[name];
  std::erase_if(values_, [&](const auto& candidate) { return candidate.first == name; });
  return value;
}

std::vector<double> StepNumbers::list(std::string_view name) const {
  const at::Tensor values = (*this)[name].contiguous();
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

StepNumbers::Copy::Copy(const StepNumbers& numbers) {
  std::vector<at::Tensor> lists;
  for (const auto& [name, value] : numbers.values_) {
    fields_.push_back({name, value.sizes().vec()});
    lists.push_back(value.reshape({-1}));
  }
  copy_ = ops::HostCopy(std::vector<at::Tensor>{at::cat(lists)});
}

StepNumbers StepNumbers::Copy::get() const {
  const at::Tensor& all = copy_.get()[0];
  StepNumbers numbers;
  int64_t begin = 0;
  for (const StepField& field : fields_) {
    const int64_t size = elements(field.shape);
    numbers.values_.emplace_back(field.name, all.narrow(0, begin, size).view(field.shape));
    begin += size;
  }
  return numbers;
}

}  // namespace dtopp::train
