// The part of libtorch that dtopp uses, as one precompiled header: tensors, operators and custom autograd
// functions.
//
// torch/torch.h (modules, data loaders, optimizers) would double the compile time of every file.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

namespace dtopp {
using at::Tensor;
}

namespace dtopp::ops {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
}  // namespace dtopp::ops
