/* Contains the runtime in the program, as nvcc links it. The drop-in sees only the runtime's
 * search for the driver. */
#include "no_driver_runtime.c"

#include "no_driver.c"
