# Defines the imported target torch::cpu from the PyPI wheel of torch, without a CUDA toolkit (the wheel's own
# TorchConfig.cmake requires one). DTOPP_SITE_PACKAGES names the folder that holds torch/ and nvidia/.
if(DTOPP_WHEEL)
  # The torch of the Python that builds the wheel.
  execute_process(COMMAND "${Python_EXECUTABLE}" -c
      "import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec('torch').origin).parents[1])"
    OUTPUT_VARIABLE DTOPP_SITE_PACKAGES OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE _status)
  if(_status)
    message(FATAL_ERROR "${Python_EXECUTABLE} has no torch, for which the wheel would be built: install torch, and build "
      "with pip's --no-build-isolation")
  endif()
elseif(NOT DTOPP_SITE_PACKAGES)
  file(GLOB _site_packages "${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages")
  set(DTOPP_SITE_PACKAGES "${_site_packages}" CACHE PATH "folder that holds torch/ and nvidia/" FORCE)
endif()
set(_torch "${DTOPP_SITE_PACKAGES}/torch")
if(NOT EXISTS "${_torch}/include/ATen/ATen.h")
  message(FATAL_ERROR "libtorch is not there: '${_torch}'. Run `make build`, or pass -DDTOPP_SITE_PACKAGES=…")
endif()

# The operators fit one minor version of torch: its C++ interface changes with each. The Python package reads it
# from a file beside libdtopp_ops.so.
file(STRINGS "${_torch}/version.py" _version REGEX "^__version__ = ")
string(REGEX MATCH "[0-9]+\\.[0-9]+" DTOPP_TORCH_MINOR "${_version}")
set(DTOPP_TORCH_FILE "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/libdtopp_ops.torch")
file(WRITE "${DTOPP_TORCH_FILE}" "${DTOPP_TORCH_MINOR}\n")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${_torch}/version.py")

add_library(torch::cpu INTERFACE IMPORTED)
target_include_directories(torch::cpu SYSTEM INTERFACE
  "${_torch}/include" "${_torch}/include/torch/csrc/api/include")
target_compile_options(torch::cpu INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
# torch's own libgomp comes first in the rpath: two OpenMP runtimes in one process would compete for the
# cores.
if(NOT DTOPP_WHEEL)
  target_link_options(torch::cpu INTERFACE
    "LINKER:-rpath,${_torch}/lib" "LINKER:-rpath,${DTOPP_SITE_PACKAGES}/nvidia/cu13/lib")
endif()
target_link_options(torch::cpu INTERFACE
  "LINKER:--no-as-needed" "-L${_torch}/lib" "LINKER:-rpath-link,${DTOPP_SITE_PACKAGES}/nvidia/cu13/lib")
set(_openmp "${_torch}/lib/libgomp.so.1")
if(NOT EXISTS "${_openmp}")
  set(_openmp gomp)  # for a torch that uses the system's library
endif()
target_link_libraries(torch::cpu INTERFACE torch_cpu c10 "${_openmp}")
