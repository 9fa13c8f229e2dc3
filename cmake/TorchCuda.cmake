# Defines the imported target torch::cuda: the additions of libdtopp_cuda.so to torch::cpu. Headers come from
# the toolkit of nvcc. The runtime comes from the location where torch's own libraries find it, so a process
# has only one.
find_program(DTOPP_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(NOT DTOPP_NVCC)
  message(FATAL_ERROR "DTOPP_CUDA=ON needs nvcc (CUDA 13), which is neither in PATH nor in /usr/local/cuda/bin")
endif()
if(NOT EXISTS "${_torch}/lib/libtorch_cuda.so")
  message(FATAL_ERROR "DTOPP_CUDA=ON needs a torch with CUDA: '${_torch}/lib' holds no libtorch_cuda.so. Run `make build CUDA=1`")
endif()
set(CMAKE_CUDA_COMPILER "${DTOPP_NVCC}")
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
# The -gencode options below select the architectures.
set(CMAKE_CUDA_ARCHITECTURES OFF)
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
endif()
enable_language(CUDA)
# CMake 3.25 assumes that nvcc does not support C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_EXTENSIONS OFF)

find_library(DTOPP_CUDART NAMES libcudart.so.13 cudart NO_DEFAULT_PATH
  PATHS "${DTOPP_SITE_PACKAGES}/nvidia/cu13/lib" ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES})
if(NOT DTOPP_CUDART)
  message(FATAL_ERROR "DTOPP_CUDA=ON needs libcudart.so.13, which is neither beside torch nor in the toolkit of ${DTOPP_NVCC}")
endif()
add_library(torch::cuda INTERFACE IMPORTED)
# nccl.h comes first from the wheel whose library torch links: the toolkit's may have another version.
find_path(DTOPP_NCCL_INCLUDE nccl.h NO_DEFAULT_PATH
  PATHS "${DTOPP_SITE_PACKAGES}/nvidia/nccl/include" ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
if(NOT DTOPP_NCCL_INCLUDE)
  message(FATAL_ERROR "DTOPP_CUDA=ON needs nccl.h, which is neither beside torch (nvidia-nccl-cu13) nor in the toolkit of ${DTOPP_NVCC}")
endif()
target_include_directories(torch::cuda SYSTEM INTERFACE "${DTOPP_NCCL_INCLUDE}")
# The wheels' headers come second. They supply headers (such as cuBLAS's) that a toolkit with nvcc alone
# lacks.
target_include_directories(torch::cuda SYSTEM INTERFACE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
if(EXISTS "${DTOPP_SITE_PACKAGES}/nvidia/cu13/include")
  target_include_directories(torch::cuda SYSTEM INTERFACE "${DTOPP_SITE_PACKAGES}/nvidia/cu13/include")
endif()
# sm_90a: Hopper with its own instructions; files of such kernels (*_wgmma_cuda.cu) are compiled for nothing else.
# sm_80 with PTX: all other devices from there on that torch supports.
target_compile_options(torch::cuda INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:\
-gencode=arch=compute_90a,code=sm_90a --Werror=all-warnings -Xcompiler=-Wall,-Wextra>")
function(dtopp_set_cuda_devices)
  foreach(source ${ARGN})
    if(source MATCHES "\\.cu$" AND NOT source MATCHES "_wgmma_cuda\\.cu$")
      set_source_files_properties(${source} PROPERTIES
        COMPILE_OPTIONS "-gencode=arch=compute_80,code=[sm_80$<COMMA>compute_80]")
    endif()
  endforeach()
endfunction()
# The driver is not needed at link time: torch supplies the parts of it that torch uses.
target_link_options(torch::cuda INTERFACE "LINKER:--allow-shlib-undefined")
target_link_libraries(torch::cuda INTERFACE torch::cpu torch_cuda c10_cuda "${DTOPP_CUDART}")
