/* The runtime inside the program, as nvcc links it: only its search for the driver can be seen. */
#include "no_driver_runtime.c"

#include "no_driver.c"
