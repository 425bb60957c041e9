# find_package(gpuheap): gpuheap::gpuheap is the library of the triplet.
get_filename_component(_gpuheap_prefix "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
find_package(Threads REQUIRED)
if(NOT TARGET gpuheap::gpuheap)
  add_library(gpuheap::gpuheap UNKNOWN IMPORTED)
  file(GLOB _gpuheap_library "${_gpuheap_prefix}/lib/libgpuheap_capi.*")
  set_target_properties(gpuheap::gpuheap PROPERTIES
    IMPORTED_LOCATION "${_gpuheap_library}"
    INTERFACE_INCLUDE_DIRECTORIES "${_gpuheap_prefix}/include"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
endif()
