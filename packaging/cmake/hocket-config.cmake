# SPDX-License-Identifier: Apache-2.0
# find_package(hocket): the targets hocket::nccl (libnccl.so.2) and hocket::nccl_static. All paths follow from this file's.
get_filename_component(_hocket_here "${CMAKE_CURRENT_LIST_DIR}" REALPATH)
get_filename_component(hocket_LIBRARY_DIR "${_hocket_here}/../.." ABSOLUTE)
get_filename_component(hocket_INCLUDE_DIR "${_hocket_here}/@TO_INCLUDE@" ABSOLUTE)
set(hocket_NCCL_VERSION "@NCCL@")
if(NOT TARGET hocket::nccl)
  set(THREADS_PREFER_PTHREAD_FLAG ON)
  include(CMakeFindDependencyMacro)
  find_dependency(Threads)
  add_library(hocket::nccl SHARED IMPORTED)
  set_target_properties(hocket::nccl PROPERTIES
    IMPORTED_LOCATION "${hocket_LIBRARY_DIR}/libnccl.so.2"
    IMPORTED_SONAME "libnccl.so.2"
    INTERFACE_INCLUDE_DIRECTORIES "${hocket_INCLUDE_DIR}")
  if(EXISTS "${hocket_LIBRARY_DIR}/libnccl_static.a")
    add_library(hocket::nccl_static STATIC IMPORTED)
    set_target_properties(hocket::nccl_static PROPERTIES
      IMPORTED_LOCATION "${hocket_LIBRARY_DIR}/libnccl_static.a"
      INTERFACE_INCLUDE_DIRECTORIES "${hocket_INCLUDE_DIR}"
      INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
  endif()
endif()
unset(_hocket_here)
