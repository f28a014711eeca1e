# The CUDA backend, as a library that the program loads at its first use (millrace/backend/cuda_loader.cpp).
if(NOT MILLRACE_CUDA)
  return()
endif()

find_program(nvcc nvcc HINTS ENV CUDA_PATH PATHS /usr/local/cuda/bin)
if(nvcc)
  get_filename_component(cuda_root ${nvcc} REALPATH)
  get_filename_component(cuda_root ${cuda_root}/../.. ABSOLUTE)
  find_path(cudnn_include cudnn_graph.h HINTS ${cuda_root}/include PATHS /usr/include /usr/include/x86_64-linux-gnu)
  find_library(cudnn_library cudnn HINTS ${cuda_root}/lib64 PATHS /usr/lib/x86_64-linux-gnu)
  find_library(cublaslt_library cublasLt HINTS ${cuda_root}/lib64)
endif()
if(NOT nvcc OR NOT cudnn_include OR NOT cudnn_library OR NOT cublaslt_library)
  message(STATUS "CUDA backend not built: install the CUDA toolkit 13 (nvcc, cuBLAS) and cuDNN 9 for device: cuda")
  return()
endif()

# Ampere and Hopper as machine code; later GPUs compile the rest when they first see it.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
endif()
set(CMAKE_CUDA_COMPILER ${nvcc})
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # older CMakes do not know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
find_package(CUDAToolkit REQUIRED)

file(GLOB cuda_sources CONFIGURE_DEPENDS millrace/backend/cuda/*.cu millrace/backend/cuda/*.cpp)
add_library(millrace_cuda MODULE ${cuda_sources})
set_target_properties(millrace_cuda PROPERTIES
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden)
target_include_directories(millrace_cuda PRIVATE ${CMAKE_SOURCE_DIR} ${cudnn_include})
target_compile_options(millrace_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --expt-extended-lambda -Xcompiler=-Wno-pedantic>)
target_link_libraries(millrace_cuda PRIVATE millrace CUDA::cudart_static CUDA::cublasLt ${cudnn_library} fmt::fmt)
