/* forms.c - see forms.h. */
#include "cuda.h"

const char *cuda_form_name(enum cuda_form form)
{
    static const char *const names[] = {
#define CUDA_FORM_NAME(id, name) name,
        CUDA_FORM_LIST(CUDA_FORM_NAME)
#undef CUDA_FORM_NAME
    };
    return form >= 0 && form < CUDA_FORMS ? names[form] : "?";
}
