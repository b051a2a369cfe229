// The card, as TRAINDECK_CARD_… describe it.
#pragma once
#include <stdlib.h>

#define CARD_CUDA 13000
static const char* card_text(const char* name, const char* otherwise) {
    const char* value = getenv(name);
    return value && *value ? value : otherwise;
}
static const char* card_name() { return card_text("TRAINDECK_CARD_NAME", "NVIDIA GeForce RTX 4090"); }
static int card_count() { return atoi(card_text("TRAINDECK_CARD_COUNT", "1")); }
static int card_capability() { return atoi(card_text("TRAINDECK_CARD_CAPABILITY", "89")); }
static size_t card_bytes() { return (size_t)strtoull(card_text("TRAINDECK_CARD_MIB", "24564"), 0, 10) << 20; }
static unsigned char card_uuid_byte(int place, int device) { return 0xa0 + place + device; }
