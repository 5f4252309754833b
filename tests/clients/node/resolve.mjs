// Preloaded (`node --import`): the packages that our scripts name lie where they were installed, not
// beside the scripts.  LOCKGATE_CLIENTS says where.
import { registerHooks } from "node:module";
import { pathToFileURL } from "node:url";

const ours = new URL(".", import.meta.url).href;
const installed = pathToFileURL(`${process.env.LOCKGATE_CLIENTS}/x.mjs`).href;

registerHooks({
  resolve(name, context, next) {
    const bare = !/^(\.|\/|node:|file:)/.test(name);
    const moved = bare && context.parentURL?.startsWith(ours);
    return next(name, moved ? { ...context, parentURL: installed } : context);
  },
});
