/* Links the runtime statically, as nvcc does. The drop-in sees only how the runtime loads the
 * driver. */
#include "no_driver_runtime.c"

#include "no_driver.c"
