// A device that is not the CPU, though its memory is: what a GPU would refuse, it refuses.
//
// Tensors of `elsewhere` do not meet those of the CPU in an operation, have no numpy array, and come
// and go by copies only.  All arithmetic is done by the CPU's own kernels.  It holds PyTorch's place
// for devices of others, "PrivateUse1".

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <optional>

namespace {

using at::IntArrayRef;
using at::Tensor;
using std::optional;

constexpr auto ELSEWHERE = c10::DeviceType::PrivateUse1;

c10::Device device() { return {ELSEWHERE, 0}; }

bool is_elsewhere(const Tensor& tensor) { return tensor.device().type() == ELSEWHERE; }

// What PyTorch wants to know of every device.

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* start = bytes ? std::malloc(bytes) : nullptr;
    return {start, start, &std::free, device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

Memory memory;
REGISTER_ALLOCATOR(ELSEWHERE, &memory);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  explicit Guard(c10::DeviceType = ELSEWHERE) {}
  c10::DeviceType type() const override { return ELSEWHERE; }
  c10::Device exchangeDevice(c10::Device) const override { return device(); }
  c10::Device getDevice() const override { return device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::make_generator<at::CPUGeneratorImpl>();
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static auto generator = at::make_generator<at::CPUGeneratorImpl>();
    return generator;
  }
};

const bool hooked = (at::RegisterPrivateUse1HooksInterface(new Hooks()), true);

// Making tensors, copying them, reading one number.

Tensor empty(
    IntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout>,
    optional<at::Device>, optional<bool>, optional<at::MemoryFormat> format) {
  const c10::DispatchKeySet key(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, &memory, key, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    IntArrayRef size, IntArrayRef stride, optional<at::ScalarType> dtype, optional<at::Layout>,
    optional<at::Device>, optional<bool>) {
  const c10::DispatchKeySet key(c10::DispatchKey::PrivateUse1);
  const auto type = c10::dtype_or_default(dtype);
  return at::detail::empty_strided_generic(size, stride, &memory, key, type);
}

// The same memory as a tensor of the CPU.
Tensor on_cpu(const Tensor& tensor) {
  if (!is_elsewhere(tensor)) return tensor;
  const auto options = tensor.options().device(at::kCPU).requires_grad(false);
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), 0, [tensor](void*) {}, options, at::kCPU);
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  on_cpu(to).copy_(on_cpu(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (from.sizes() != to.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar item(const Tensor& tensor) { return on_cpu(tensor).item(); }

// Everything else: as the CPU does it, if all is here.

void refuse_company(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  bool here = false, there = false;
  const auto see = [&](const Tensor& tensor) {
    if (!tensor.defined()) return;
    here |= is_elsewhere(tensor);
    there |= !is_elsewhere(tensor) && tensor.dim() > 0;  // a number is at home everywhere
  };
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (value.isTensor()) see(value.toTensor());
    if (value.isTensorList()) for (const Tensor& each : value.toTensorList()) see(each);
    if (value.isOptionalTensorList())
      for (const optional<Tensor>& each : value.toOptionalTensorList()) if (each) see(*each);
  }
  const auto& name = op.schema().name();
  const bool takes_indices = name.rfind("aten::index", 0) == 0 &&
      name.find("index_select") == std::string::npos && name.find("index_copy") == std::string::npos &&
      name.find("index_add") == std::string::npos;  // x[i] takes an i of the CPU on every device
  TORCH_CHECK(
      !(here && there) || takes_indices || name.rfind("aten::_index_put", 0) == 0, name,
      ": expected all tensors to be on the same device: got some of the CPU and some elsewhere");
  at::native::cpu_fallback(op, stack);
}

// Composed of others: PyTorch has a fused kernel for GPUs only.
Tensor gru_cell(
    const Tensor& input, const Tensor& hidden, const Tensor& input_weight,
    const Tensor& hidden_weight, const optional<Tensor>& input_bias,
    const optional<Tensor>& hidden_bias) {
  const auto given = at::linear(input, input_weight, input_bias).chunk(3, 1);
  const auto own = at::linear(hidden, hidden_weight, hidden_bias).chunk(3, 1);
  const auto reset = (given[0] + own[0]).sigmoid(), keep = (given[1] + own[1]).sigmoid();
  const auto fresh = (given[2] + reset * own[2]).tanh();
  return fresh + keep * (hidden - fresh);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_company>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("unfold", at::native::unfold);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("resize_", at::native::resize_);
  library.impl("set_.source_Tensor", at::native::set_tensor_);
  library.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &item);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) { library.impl("gru_cell", &gru_cell); }
